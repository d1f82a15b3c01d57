// CUDA C++ for the host compiler: what nvcc supplies to the kernels, by other means.
//
// Included before the source of the kernels. The driver runs the threads; where it calls a thread,
// or lets it go on, it has put the thread's index into `coordinates`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include <cuda.h>
#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "module.h"

// A keyword may not stand where nvcc allows it; the attribute may.
#define alignas(bytes) __attribute__((aligned(bytes)))
#undef __forceinline__
#define __forceinline__ inline
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__

namespace emulator {

inline Coordinates coordinates;
inline const Services* services;

inline unsigned linear_thread() {
  const Extent &t = coordinates.thread, &n = coordinates.block_extent;
  return (t.z * n.y + t.y) * n.x + t.x;
}

inline int lane() { return linear_thread() % kWarp; }

template <typename T>
T from_lane(unsigned mask, T value, int source, unsigned line) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const std::uint64_t* values = services->exchange(mask, bits, line);
  std::memcpy(&value, &values[source], sizeof value);
  return value;
}

template <auto function>
struct Launch;

template <typename... Parameters, void (*function)(Parameters...)>
struct Launch<function> {
  static constexpr int count = sizeof...(Parameters);
  static constexpr bool is_pointer[] = {std::is_pointer_v<Parameters>..., false};

  template <std::size_t... i>
  static void call(void** arguments, std::index_sequence<i...>) {
    function(*static_cast<std::remove_const_t<Parameters>*>(arguments[i])...);
  }
  static void thread(void** arguments) {
    call(arguments, std::make_index_sequence<sizeof...(Parameters)>());
  }
  static void block(void** arguments, bool reversed) {
    const Extent n = coordinates.block_extent;
    const unsigned count = n.count();
    for (unsigned i = 0; i < count; ++i) {
      const unsigned t = reversed ? count - 1 - i : i;
      coordinates.thread = {t % n.x, t / n.x % n.y, t / n.x / n.y};
      thread(arguments);
    }
  }
};

}  // namespace emulator

// The table of kernels is a section that all translation units of a module add to.
#define EMULATED_KERNEL(kernel, synchronises, most_threads, shared_bytes, begin, end)     \
  static const emulator::Kernel emulated_##kernel = {                                     \
      #kernel,                                                                            \
      synchronises,                                                                       \
      most_threads,                                                                       \
      shared_bytes,                                                                       \
      begin,                                                                              \
      end,                                                                                \
      emulator::Launch<&kernel>::count,                                                   \
      emulator::Launch<&kernel>::is_pointer,                                              \
      emulator::Launch<&kernel>::thread,                                                  \
      emulator::Launch<&kernel>::block};                                                  \
  __attribute__((section("emulated_kernels"), used)) static const emulator::Kernel* const \
      entry_of_##kernel = &emulated_##kernel;

extern const emulator::Kernel* const __start_emulated_kernels[]
    __attribute__((visibility("hidden")));
extern const emulator::Kernel* const __stop_emulated_kernels[]
    __attribute__((visibility("hidden")));

extern "C" __attribute__((visibility("default"), used)) inline emulator::Module emulated_module(
    const emulator::Services* services) {
  emulator::services = services;
  return {&emulator::coordinates, __start_emulated_kernels, __stop_emulated_kernels};
}

// Called by code that `-fsanitize=bounds` has added, at an index outside a local or shared array.
extern "C" __attribute__((used)) inline void __ubsan_handle_out_of_bounds_abort(void* where, void*) {
  struct Location {
    const char* file;
    unsigned line, column;
  };
  emulator::services->fault(static_cast<Location*>(where)->line, "index outside an array");
}

#define threadIdx (emulator::coordinates.thread)
#define blockIdx (emulator::coordinates.block)
#define blockDim (emulator::coordinates.block_extent)
#define gridDim (emulator::coordinates.grid_extent)
#define warpSize (emulator::kWarp)
#define __syncthreads() emulator::services->barrier(__LINE__)

// Whether any thread of the block has passed a value that is not 0.
inline int __syncthreads_or(int value, unsigned line = __builtin_LINE()) {
  static int any;
  any |= value;
  emulator::services->barrier(line);
  const int result = any;
  emulator::services->barrier(line);
  any = 0;  // before any thread passes a value again
  emulator::services->barrier(line);
  return result;
}

// Warp-level functions.

#define __activemask() emulator::services->active(__LINE__)

inline void __syncwarp(unsigned mask = 0xffffffff, unsigned line = __builtin_LINE()) {
  emulator::services->exchange(mask, 0, line);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = emulator::kWarp,
              unsigned line = __builtin_LINE()) {
  const int first = emulator::lane() & ~(width - 1);
  return emulator::from_lane(mask, value, first + (source & (width - 1)), line);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = emulator::kWarp,
                 unsigned line = __builtin_LINE()) {
  const int me = emulator::lane(), source = me - static_cast<int>(delta);
  const bool inside = source >= (me & ~(width - 1));
  return emulator::from_lane(mask, value, inside ? source : me, line);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = emulator::kWarp,
                   unsigned line = __builtin_LINE()) {
  const int me = emulator::lane(), source = me + static_cast<int>(delta);
  const bool inside = source <= (me | (width - 1));
  return emulator::from_lane(mask, value, inside ? source : me, line);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = emulator::kWarp,
                  unsigned line = __builtin_LINE()) {
  const int me = emulator::lane(), source = me ^ bits;
  const bool inside = source <= (me | (width - 1));
  return emulator::from_lane(mask, value, inside ? source : me, line);
}

// Atomic functions: threads are never interrupted.

template <typename T>
T atomicAdd(T* address, std::common_type_t<T> value) {
  T old = *address;
  *address = old + value;
  return old;
}

template <typename T>
T atomicMax(T* address, std::common_type_t<T> value) {
  T old = *address;
  *address = old < value ? value : old;
  return old;
}

template <typename T>
T atomicMin(T* address, std::common_type_t<T> value) {
  T old = *address;
  *address = value < old ? value : old;
  return old;
}

inline unsigned atomicInc(unsigned* address, unsigned last) {
  const unsigned old = *address;
  *address = old >= last ? 0 : old + 1;
  return old;
}

template <typename T>
T atomicExch(T* address, std::common_type_t<T> value) {
  return std::exchange(*address, value);
}

template <typename T>
T atomicCAS(T* address, std::common_type_t<T> expected, std::common_type_t<T> value) {
  T old = *address;
  if (old == expected) *address = value;
  return old;
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}

inline void __threadfence() {}
inline void __threadfence_block() {}

// Mathematics. Of floating-point numbers `max` and `min` are those that ignore a NaN.

namespace emulator {
template <typename T>
inline constexpr bool is_half = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;
}

template <typename A, typename B>
auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return T(std::fmax(T(a), T(b)));
  else return T(a) < T(b) ? T(b) : T(a);
}

template <typename A, typename B>
auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return T(std::fmin(T(a), T(b)));
  else return T(b) < T(a) ? T(b) : T(a);
}

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float exp10f(float x) { return static_cast<float>(std::pow(10.0, x)); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
inline float normcdff(float x) { return static_cast<float>(normcdf(x)); }
inline double exp10(double x) { return std::pow(10.0, x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }

inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }

namespace emulator {
template <typename To, typename From>
To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}
}  // namespace emulator

inline float __int_as_float(int x) { return emulator::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bits<float>(x); }
inline int __float_as_int(float x) { return emulator::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emulator::bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulator::bits<long long>(x); }

// Functions of half precision that the headers give to nvcc alone: by way of float32, rounded once.

#define EMULATED_HALF_UNARY(name, expression)                             \
  template <typename T, std::enable_if_t<emulator::is_half<T>, int> = 0>  \
  T name(T value) {                                                       \
    const float x = static_cast<float>(value);                            \
    return T(static_cast<float>(expression));                             \
  }
EMULATED_HALF_UNARY(hceil, std::ceil(x))
EMULATED_HALF_UNARY(hfloor, std::floor(x))
EMULATED_HALF_UNARY(htrunc, std::trunc(x))
EMULATED_HALF_UNARY(hrint, std::nearbyint(x))
EMULATED_HALF_UNARY(hsqrt, std::sqrt(x))
EMULATED_HALF_UNARY(hrsqrt, 1 / std::sqrt(x))
EMULATED_HALF_UNARY(hrcp, 1 / x)
EMULATED_HALF_UNARY(hexp, std::exp(x))
EMULATED_HALF_UNARY(hexp2, std::exp2(x))
EMULATED_HALF_UNARY(hexp10, exp10f(x))
EMULATED_HALF_UNARY(hlog, std::log(x))
EMULATED_HALF_UNARY(hlog2, std::log2(x))
EMULATED_HALF_UNARY(hlog10, std::log10(x))
EMULATED_HALF_UNARY(hsin, std::sin(x))
EMULATED_HALF_UNARY(hcos, std::cos(x))
EMULATED_HALF_UNARY(htan, std::tan(x))
EMULATED_HALF_UNARY(htanh, std::tanh(x))
EMULATED_HALF_UNARY(hsinh, std::sinh(x))
EMULATED_HALF_UNARY(hcosh, std::cosh(x))
EMULATED_HALF_UNARY(hatan, std::atan(x))
EMULATED_HALF_UNARY(herf, std::erf(x))
#undef EMULATED_HALF_UNARY

template <typename T, std::enable_if_t<emulator::is_half<T>, int> = 0>
T hpow(T x, T y) {
  return T(std::pow(static_cast<float>(x), static_cast<float>(y)));
}
