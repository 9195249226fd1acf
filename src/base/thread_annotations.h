// What a lock guards, in words that clang's -Wthread-safety holds; other compilers see nothing.
//
//   LOCKSTEP_GUARDED_BY(mutex_)   a member: read and written only while the mutex is held
//   LOCKSTEP_REQUIRES(mutex_)     a function: the caller holds the mutex
//   LOCKSTEP_EXCLUDES(mutex_)     a function: the caller does not hold it; the function takes it
//
// The standard library's mutexes are not annotated here: use those of base/mutex.h.
#pragma once

#if defined(__clang__)
#define LOCKSTEP_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(attribute)
#endif

#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

// For base/mutex.h.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ATTRIBUTE(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable)
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
