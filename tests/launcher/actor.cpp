// A worker that does what a test asks for. Built without sanitizers: it is killed in every way, and
// many times. Whatever happens, it ends by itself after a minute.
//
//   env NAME...          prints NAME=value
//   exit RANK CODE       that rank exits, the others wait
//   raise RANK SIGNAL    that rank is killed by a signal, the others wait
//   lines COUNT          prints numbered lines in odd pieces
//   long BYTES           prints one line of that length
//   bar                  draws a progress bar with carriage returns
//   flood                prints lines for ever
//   wait                 prints "ready" and waits
//   stubborn             the same, deaf to SIGTERM and SIGINT
//   fail RANK CODE       stubborn, but that rank exits at SIGUSR1
//   catch                prints "ready", and "caught N" for every signal; ends with 3 after SIGTERM
//   or SIGINT family               starts a child, a daemon in a session of its own, and waits
//   breed                starts daemons for ever, up to a limit, and waits
//   leave                starts a daemon and exits with 0
//   descriptors          prints what is open
//   input                prints how many bytes standard input has
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr unsigned kLifeSeconds = 60;

int rank() {
  const char* text = std::getenv("RANK");
  return text == nullptr ? -1 : std::atoi(text);
}

void say(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t sent = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (sent <= 0) std::exit(1);
    done += static_cast<std::size_t>(sent);
  }
}

[[noreturn]] void wait_here() {
  while (true) ::pause();
}

// A process that has left its parent, its group and its session.
void start_daemon() {
  const pid_t middle = ::fork();
  if (middle == 0) {
    ::setsid();
    if (::fork() == 0) {
      ::alarm(kLifeSeconds);
      wait_here();
    }
    ::_exit(0);
  }
  ::waitpid(middle, nullptr, 0);
}

int lines(int count) {
  const std::string filler(100, static_cast<char>('a' + rank() % 26));
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "<" + std::to_string(rank()) + " " + std::to_string(i) + " " +
            filler.substr(0, static_cast<std::size_t>(i % 100)) + ">\n";
    // 1,237 bytes: pieces end anywhere in a line.
    while (text.size() >= 1237) {
      say(text.substr(0, 1237));
      text.erase(0, 1237);
    }
  }
  say(text);
  return 0;
}

int bar() {
  for (int percent = 0; percent <= 100; ++percent) say("\rstep " + std::to_string(percent) + " %");
  say("\ndone");
  return 0;
}

// Handlers only count; the text is written where that is safe.
volatile sig_atomic_t caught[65];
void count_signal(int signal) {
  caught[signal] = caught[signal] + 1;
}

int catch_signals() {
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT};
  for (const int signal : signals) ::signal(signal, count_signal);
  say("ready\n");
  while (caught[SIGTERM] == 0 && caught[SIGINT] == 0) {
    ::sigsuspend(&none);
    for (const int signal : signals) {
      if (caught[signal] == 0) continue;
      say("caught " + std::to_string(signal) + "\n");
      if (signal != SIGTERM && signal != SIGINT) caught[signal] = 0;
    }
  }
  return 3;
}

int fail_when_told(int failing_rank, int code) {
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &told, nullptr);
  say("ready\n");
  int signal = 0;
  ::sigwait(&told, &signal);
  if (rank() == failing_rank) return code;
  wait_here();
}

int descriptors() {
  for (const auto& item : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(item.path(), error);
    if (error || target.string().find("/fd") != std::string::npos) continue;
    say("fd " + item.path().filename().string() + " " + target.string() + "\n");
  }
  return 0;
}

int input() {
  char buffer[4096];
  long total = 0;
  for (ssize_t got = 0; (got = ::read(STDIN_FILENO, buffer, sizeof buffer)) > 0;) total += got;
  say("input " + std::to_string(total) + "\n");
  return 0;
}

int family() {
  if (::fork() == 0) {
    ::alarm(kLifeSeconds);
    wait_here();
  }
  start_daemon();
  say("ready\n");
  wait_here();
}

int breed() {
  say("ready\n");
  for (int i = 0; i < 100; ++i) start_daemon();
  wait_here();
}

int leave() {
  start_daemon();
  return 0;
}

int act(const std::string& role, const std::vector<std::string>& arguments) {
  const auto number = [&](std::size_t index) { return std::atoi(arguments.at(index).c_str()); };
  if (role == "env") {
    for (const auto& name : arguments) {
      const char* value = std::getenv(name.c_str());
      say(name + "=" + (value == nullptr ? "(unset)" : value) + "\n");
    }
    return 0;
  }
  if (role == "exit" && rank() == number(0)) {
    std::fprintf(stderr, "about to fail\nthe reason\n");
    return number(1);
  }
  if (role == "raise" && rank() == number(0)) return ::raise(number(1));
  if (role == "lines") return lines(number(0));
  if (role == "long") return say(std::string(static_cast<std::size_t>(number(0)), 'x') + "\n"), 0;
  if (role == "bar") return bar();
  while (role == "flood") say("a line of the flood\n");
  if (role == "catch") return catch_signals();
  if (role == "family") return family();
  if (role == "breed") return breed();
  if (role == "leave") return leave();
  if (role == "descriptors") return descriptors();
  if (role == "input") return input();
  if (role == "stubborn" || role == "fail") {
    ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);
  }
  if (role == "fail") return fail_when_told(number(0), number(1));
  say("ready\n");
  wait_here();
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(kLifeSeconds);
  if (argc < 2) return 2;
  return act(argv[1], {argv + 2, argv + argc});
}
