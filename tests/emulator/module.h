// What a compiled module of kernels and the emulated driver know of each other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

struct Extent {
  unsigned x, y, z;
  std::size_t count() const { return std::size_t{x} * y * z; }
};

constexpr int kWarp = 32;

// Services that the driver gives to a running kernel. Each suspends the calling thread.
struct Services {
  // Until every thread of the block has called it.
  void (*barrier)(unsigned line);
  // Until every lane of the mask has called it; returns the 32 values, absent ones poisoned.
  const std::uint64_t* (*exchange)(unsigned mask, std::uint64_t value, unsigned line);
  // Until the warp can go no further; returns the lanes that wait at the same line.
  unsigned (*active)(unsigned line);
  // Ends the launch with an error.
  void (*fault)(unsigned line, const char* what);
};

// Where the kernels of a module read their indices from.
struct Coordinates {
  Extent thread, block, block_extent, grid_extent;
  unsigned char* dynamic_shared;
};

struct Kernel {
  const char* name;
  bool synchronises;
  unsigned most_threads;  // 0: no launch bounds
  std::size_t shared_bytes;
  unsigned char *shared_begin, *shared_end;
  int parameters;
  const bool* is_pointer;
  void (*run_thread)(void** arguments);
  // All threads of a block after one another; only for kernels that do not synchronise.
  void (*run_block)(void** arguments, bool reversed);
};

struct Module {
  Coordinates* coordinates;
  const Kernel *const *begin, *const *end;
};

}  // namespace emulator
