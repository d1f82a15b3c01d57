#include "execution.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device_memory.h"

namespace emulator {
namespace {

constexpr std::size_t kStack = std::size_t{128} << 10;
constexpr int kPoison = 0xff;

enum class State { ready, barrier, exchange, active, done };

// A thread of the device. It outlives its kernel and waits for the next one to run.
struct Fibre {
  jmp_buf where;
  State state;
  unsigned line;  // of the source, where it waits
  unsigned mask;  // lanes that it waits for, or that were active
  std::uint64_t value, seen[kWarp];
  void* stack;
  ~Fibre() { munmap(stack, kStack); }
};

// The launch under way.
const Kernel* kernel;
Coordinates* coordinates;
void** arguments;
bool reversed;

std::vector<std::unique_ptr<Fibre>> fibres;
Fibre* current;
jmp_buf scheduler;
ucontext_t creator;

sigjmp_buf recovery;
CUresult fault_code;

[[noreturn]] void fault_as(CUresult code, unsigned line, const char* what) {
  const Extent &b = coordinates->block, &t = coordinates->thread;
  say("kernel %s, block (%u, %u, %u), thread (%u, %u, %u), line %u of the source: %s", kernel->name,
      b.x, b.y, b.z, t.x, t.y, t.z, line, what);
  fault_code = code;
  siglongjmp(recovery, 1);
}

void fault(unsigned line, const char* what) {
  fault_as(CUDA_ERROR_ILLEGAL_ADDRESS, line, what);
}

// Fibres: switched by _setjmp and _longjmp, which make no system call; ucontext only starts them.

__attribute__((noinline)) void suspend() {
  if (!_setjmp(current->where)) _longjmp(scheduler, 1);
}

__attribute__((noinline)) void resume(Fibre& fibre) {
  current = &fibre;
  if (!_setjmp(scheduler)) _longjmp(fibre.where, 1);
}

void live() {
  if (!_setjmp(current->where)) setcontext(&creator);
  for (;;) {
    kernel->run_thread(arguments);
    current->state = State::done;
    suspend();
  }
}

void add_fibre() {
  auto fibre = std::make_unique<Fibre>();
  fibre->stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  mprotect(fibre->stack, 4096, PROT_NONE);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack = {fibre->stack, 0, kStack};
  context.uc_link = nullptr;
  makecontext(&context, live, 0);
  current = fibre.get();
  swapcontext(&creator, &context);
  fibres.push_back(std::move(fibre));
}

// What a kernel calls.

Fibre& wait(State state, unsigned line, unsigned mask) {
  Fibre& me = *current;
  me.state = state;
  me.line = line;
  me.mask = mask;
  suspend();
  return me;
}

void barrier(unsigned line) { wait(State::barrier, line, 0); }

const std::uint64_t* exchange(unsigned mask, std::uint64_t value, unsigned line) {
  current->value = value;
  return wait(State::exchange, line, mask).seen;
}

unsigned active(unsigned line) { return wait(State::active, line, 0).mask; }

// The scheduler: each thread runs until it waits; then those whose wait is over are released.

struct Warp {
  Fibre* lanes[kWarp];
  int count;
};

Warp warp_at(std::size_t first, std::size_t threads) {
  Warp warp{{}, static_cast<int>(std::min<std::size_t>(kWarp, threads - first))};
  for (int i = 0; i < warp.count; ++i) warp.lanes[i] = fibres[first + i].get();
  return warp;
}

bool all_arrived(const Warp& warp, const Fibre& waiting) {
  for (int i = 0; i < warp.count; ++i) {
    const Fibre& lane = *warp.lanes[i];
    if (!(waiting.mask >> i & 1) || lane.state == State::done) continue;
    if (lane.state != State::exchange || lane.mask != waiting.mask || lane.line != waiting.line)
      return false;
  }
  return true;
}

void release_exchange(const Warp& warp, unsigned mask) {
  std::uint64_t values[kWarp];
  std::memset(values, kPoison, sizeof values);
  for (int i = 0; i < warp.count; ++i)
    if ((mask >> i & 1) && warp.lanes[i]->state == State::exchange)
      values[i] = warp.lanes[i]->value;
  for (int i = 0; i < warp.count; ++i) {
    Fibre& lane = *warp.lanes[i];
    if (!(mask >> i & 1) || lane.state != State::exchange) continue;
    std::memcpy(lane.seen, values, sizeof values);
    lane.state = State::ready;
  }
}

bool release_exchanges(const Warp& warp) {
  bool released = false;
  for (int i = 0; i < warp.count; ++i) {
    Fibre& lane = *warp.lanes[i];
    if (lane.state != State::exchange || !all_arrived(warp, lane)) continue;
    if (!(lane.mask >> i & 1)) fault(lane.line, "a lane outside its own mask");
    release_exchange(warp, lane.mask);
    released = true;
  }
  return released;
}

bool release_active(const Warp& warp) {
  unsigned line = 0, mask = 0;
  for (int i = 0; i < warp.count; ++i) {
    const Fibre& lane = *warp.lanes[i];
    if (lane.state != State::active) continue;
    if (!mask) line = lane.line;
    if (lane.line == line) mask |= 1u << i;
  }
  for (int i = 0; i < warp.count; ++i) {
    if (!(mask >> i & 1)) continue;
    warp.lanes[i]->mask = mask;
    warp.lanes[i]->state = State::ready;
  }
  return mask;
}

bool release_warps(std::size_t threads) {
  bool released = false;
  for (std::size_t first = 0; first < threads; first += kWarp) {
    const Warp warp = warp_at(first, threads);
    if (release_exchanges(warp) || release_active(warp)) released = true;
  }
  return released;
}

void release_barrier(std::size_t threads) {
  unsigned line = 0;
  for (std::size_t i = 0; i < threads; ++i) {
    if (fibres[i]->state == State::exchange)
      fault_as(CUDA_ERROR_LAUNCH_FAILED, fibres[i]->line, "lanes of the mask never come here");
    if (fibres[i]->state == State::barrier) line = fibres[i]->line;
  }
  for (std::size_t i = 0; i < threads; ++i) {
    if (fibres[i]->state != State::barrier || fibres[i]->line != line)
      fault_as(CUDA_ERROR_LAUNCH_FAILED, line,
               "divergent barrier: only some threads of the block come here");
  }
  for (std::size_t i = 0; i < threads; ++i) fibres[i]->state = State::ready;
}

// Lets every thread that may run do so; whether any is left that has not ended.
bool run_ready(std::size_t threads, bool& progressed) {
  bool alive = false;
  progressed = false;
  const Extent n = coordinates->block_extent;
  for (std::size_t i = 0; i < threads; ++i) {
    const unsigned t = reversed ? threads - 1 - i : i;
    if (fibres[t]->state == State::ready) {
      coordinates->thread = {t % n.x, t / n.x % n.y, t / n.x / n.y};
      resume(*fibres[t]);
      progressed = true;
    }
    alive |= fibres[t]->state != State::done;
  }
  return alive;
}

void run_fibres(std::size_t threads) {
  while (fibres.size() < threads) add_fibre();
  for (std::size_t i = 0; i < threads; ++i) fibres[i]->state = State::ready;
  bool progressed;
  while (run_ready(threads, progressed))
    if (!progressed && !release_warps(threads)) release_barrier(threads);
}

void run_blocks(std::size_t dynamic_shared_bytes) {
  const Extent n = coordinates->grid_extent;
  const std::size_t blocks = n.count(), threads = coordinates->block_extent.count();
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t b = reversed ? blocks - 1 - i : i;
    coordinates->block = {static_cast<unsigned>(b % n.x), static_cast<unsigned>(b / n.x % n.y),
                          static_cast<unsigned>(b / n.x / n.y)};
    if (kernel->shared_begin)
      std::memset(kernel->shared_begin, kPoison, kernel->shared_end - kernel->shared_begin);
    if (dynamic_shared_bytes)
      std::memset(coordinates->dynamic_shared, kPoison, dynamic_shared_bytes);
    if (kernel->synchronises)
      run_fibres(threads);
    else
      kernel->run_block(arguments, reversed);
  }
}

// A fault of a kernel is an error of the launch, not the end of the process.

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

void on_signal(int number) {
  fault(0, number == SIGFPE ? "division of an integer by zero" : "access outside any memory");
}

class SignalGuard {
 public:
  SignalGuard() {
    static std::vector<char> stack(SIGSTKSZ * 4);
    stack_t mine{stack.data(), 0, stack.size()};
    sigaltstack(&mine, &old_stack_);
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &action, &old_[i]);
  }
  ~SignalGuard() {
    for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &old_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  stack_t old_stack_;
  struct sigaction old_[4];
};

__attribute__((noinline)) bool completes(std::size_t dynamic_shared_bytes) {
  if (sigsetjmp(recovery, 1)) return false;
  run_blocks(dynamic_shared_bytes);
  return true;
}

}  // namespace

const Services services{barrier, exchange, active, fault};

CUresult run(const Kernel& launched, Coordinates& place, void** values,
             std::size_t dynamic_shared_bytes) {
  kernel = &launched;
  coordinates = &place;
  arguments = values;
  const char* order = std::getenv("GRAPHGRAD_EMULATOR_ORDER");
  reversed = order && std::string(order) == "reverse";
  std::vector<unsigned char> dynamic_shared(dynamic_shared_bytes + 128);
  const auto start = reinterpret_cast<std::uintptr_t>(dynamic_shared.data());
  place.dynamic_shared = reinterpret_cast<unsigned char*>((start + 127) / 128 * 128);
  const SignalGuard guard;
  if (completes(dynamic_shared_bytes)) return CUDA_SUCCESS;
  fibres.clear();  // some stand in the midst of the kernel
  return break_device(fault_code);
}

}  // namespace emulator
