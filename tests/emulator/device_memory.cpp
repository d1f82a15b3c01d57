#include "device_memory.h"

#include <sys/mman.h>

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

namespace emulator {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuard = 256;
constexpr std::size_t kGap = 4096;  // between two allocations, in addresses
constexpr std::size_t kAddresses = std::size_t{1} << 42;
constexpr std::size_t kDefaultMemory = std::size_t{8} << 30;
constexpr int kPoison = 0xff;  // a NaN of every float type, and −1 of every integer

struct Allocation {
  std::size_t bytes;
  unsigned char* memory;  // guard, contents, guard
  unsigned char* contents() const { return memory + kGuard; }
};

std::mutex mutex;
std::map<std::uintptr_t, Allocation> allocations;
std::size_t used = 0;
std::uintptr_t next_address = 0;
CUresult broken = CUDA_SUCCESS;

std::size_t limit() { return setting("GRAPHGRAD_EMULATOR_MEMORY", kDefaultMemory); }

std::uintptr_t reserve(std::size_t bytes) {
  static const auto first = reinterpret_cast<std::uintptr_t>(
      mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (!next_address) next_address = first;
  const std::uintptr_t given = next_address;
  next_address += (bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
  return next_address > first + kAddresses ? 0 : given;
}

bool untouched(const unsigned char* guard) {
  for (std::size_t i = 0; i < kGuard; ++i)
    if (guard[i] != kPoison) return false;
  return true;
}

bool guards_hold(std::uintptr_t address, const Allocation& allocation, const char* after) {
  const bool before = untouched(allocation.memory);
  if (before && untouched(allocation.contents() + allocation.bytes)) return true;
  say("after %s: memory written %s the %zu bytes at %p", after, before ? "behind" : "before",
      allocation.bytes, reinterpret_cast<void*>(address));
  return false;
}

}  // namespace

void say(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fputs("CUDA emulator: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

std::size_t setting(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

int device_count() { return static_cast<int>(setting("GRAPHGRAD_EMULATOR_DEVICES", 1)); }

int capability() {
  const char* text = std::getenv("GRAPHGRAD_EMULATOR_CAPABILITY");
  return text && *text ? static_cast<int>(std::lround(10 * std::atof(text))) : 90;
}

CUresult device_error() { return broken; }

CUresult break_device(CUresult error) { return broken = error; }

void* host_address(const void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  auto found = allocations.upper_bound(wanted);
  if (found == allocations.begin()) return nullptr;
  const auto& [start, allocation] = *std::prev(found);
  const std::size_t offset = wanted - start;
  if (offset > allocation.bytes || bytes > allocation.bytes - offset) return nullptr;
  return allocation.contents() + offset;
}

CUresult allocate(void** address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  *address = nullptr;
  if (!bytes) return CUDA_SUCCESS;
  if (bytes > limit() || used > limit() - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t total = (bytes + 2 * kGuard + kAlignment - 1) / kAlignment * kAlignment;
  auto* memory = static_cast<unsigned char*>(std::aligned_alloc(kAlignment, total));
  const std::uintptr_t given = memory ? reserve(bytes) : 0;
  if (!given) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, kPoison, total);
  allocations[given] = {bytes, memory};
  used += bytes;
  *address = reinterpret_cast<void*>(given);
  return CUDA_SUCCESS;
}

CUresult release(void* address) {
  const std::lock_guard lock(mutex);
  if (!address) return CUDA_SUCCESS;
  const auto found = allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == allocations.end()) {
    say("%p is freed, which was not allocated, or is freed already", address);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Allocation allocation = found->second;
  const bool intact = guards_hold(found->first, allocation, "its use");
  std::free(allocation.memory);
  used -= allocation.bytes;
  allocations.erase(found);
  return intact ? CUDA_SUCCESS : break_device(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void memory_info(std::size_t* available, std::size_t* total) {
  const std::lock_guard lock(mutex);
  *total = limit();
  *available = used < limit() ? limit() - used : 0;
}

bool guards_hold(const char* after) {
  const std::lock_guard lock(mutex);
  for (const auto& [address, allocation] : allocations)
    if (!guards_hold(address, allocation, after)) return false;
  return true;
}

}  // namespace emulator
