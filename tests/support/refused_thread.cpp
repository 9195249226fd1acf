// Stands before the C library's pthread_create, for every library of the program.
#include "tests/support/refused_thread.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

namespace {

constexpr int kNone = -1;
thread_local int others_left = kNone;

using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
    void* argument) noexcept {
  static Create* const create = reinterpret_cast<Create*>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (others_left != kNone && others_left-- == 0) return EAGAIN;
  return create(thread, attributes, start, argument);
}

namespace lockstep::testing {

RefusedThread::RefusedThread(int others) {
  others_left = others;
}

RefusedThread::~RefusedThread() {
  others_left = kNone;
}

bool RefusedThread::happened() const {
  return others_left == kNone;
}

}  // namespace lockstep::testing
