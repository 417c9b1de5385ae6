// `sluice top`: the agent's snapshots, drawn on the terminal's second screen; plain blocks of text when the output is
// no terminal. The agent sends a snapshot per interval; a thread of our own would only add a second clock.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/views.h"

namespace sluice::cli {
namespace {

volatile sig_atomic_t g_stopped = 0;
void on_signal(int) {
  g_stopped = 1;
}

// The second screen with keys read one by one, and everything as it was afterwards, also after Ctrl-C.
class Screen {
 public:
  Screen() {
    // Ctrl-C and the like come as keys and signals; both end the loop, so that the destructor runs.
    struct sigaction action{};
    action.sa_handler = on_signal;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
    keys_ = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &old_) == 0;
    if (keys_) {
      termios raw = old_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_cc[VMIN] = 0;
      raw.c_cc[VTIME] = 0;
      tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\x1b[?1049h\x1b[?25l", stdout);
  }
  ~Screen() {
    fputs("\x1b[?25h\x1b[?1049l", stdout);
    fflush(stdout);
    if (keys_) tcsetattr(STDIN_FILENO, TCSANOW, &old_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void draw(const agent::ListAnswer& list) {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) size = {24, 80, 0, 0};
    const std::string text = top_text(list, std::time(nullptr), size.ws_row - 2, size.ws_col);
    std::string out = "\x1b[H";
    // Each line clears its rest, the end clears what is below: no flicker from clearing the whole screen first.
    for (const char c : text) out += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
    out += "\x1b[J\nq quits";
    fputs(out.c_str(), stdout);
    fflush(stdout);
  }

  bool quit() const {
    pollfd key{STDIN_FILENO, POLLIN, 0};
    char pressed = 0;
    while (keys_ && poll(&key, 1, 0) == 1 && read(STDIN_FILENO, &pressed, 1) == 1) {
      if (pressed == 'q' || pressed == 'Q' || pressed == 3) return true;
    }
    return g_stopped != 0;
  }

 private:
  bool keys_ = false;
  termios old_{};
};

// A key is looked for this often, however rarely the page is drawn.
constexpr int kKeyIntervalMs = 250;

int watch_on_screen(agent::Client& client, const TopOptions& options) {
  Result<void> result;
  {
    Screen screen;
    int drawn = 0;
    const int step_ms = std::min(options.interval_ms, kKeyIntervalMs);
    int waited_ms = options.interval_ms;
    result = client.watch(step_ms, [&](const agent::ListAnswer& list) {
      waited_ms += step_ms;
      if (waited_ms >= options.interval_ms) {
        screen.draw(list);
        waited_ms = 0;
        ++drawn;
      }
      return !screen.quit() && (options.iterations == 0 || drawn < options.iterations);
    });
  }
  return result || g_stopped != 0 ? kExitOk : fail("top", result.error());
}

int watch_as_text(agent::Client& client, const Options& options) {
  int left = options.top.iterations;
  const auto result = client.watch(options.top.interval_ms, [&](const agent::ListAnswer& list) {
    if (options.json) {
      fmt::print("{}\n", json::to_string(list.to_json()));
    } else {
      fputs((top_text(list, std::time(nullptr), 1000, 1000) + "\n").c_str(), stdout);
    }
    fflush(stdout);
    return ferror(stdout) == 0 && (options.top.iterations == 0 || --left > 0);
  });
  return result ? kExitOk : fail("top", result.error());
}

}  // namespace

int top(const Options& options) {
  auto client = connect(options);
  if (!client) return fail("top", client.error());
  if (isatty(STDOUT_FILENO) == 1 && !options.json) return watch_on_screen(*client, options.top);
  return watch_as_text(*client, options);
}

}  // namespace sluice::cli
