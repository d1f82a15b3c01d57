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

// Instructions of PTX that kernels have inline: `translate.py` makes calls of them.

inline std::size_t __cvta_generic_to_shared(const void* address) {
  return reinterpret_cast<std::size_t>(address);
}

namespace emulator {

// What all lanes of a warp have passed; none goes on before all have read what they need of it.
template <typename T, typename Read>
void among_lanes(const T& mine, unsigned line, Read read) {
  const std::uint64_t* passed =
      services->exchange(0xffffffff, reinterpret_cast<std::uintptr_t>(&mine), line);
  for (int i = 0; i < kWarp; ++i)
    if (passed[i] == ~std::uint64_t{0}) services->fault(line, "some lanes of the warp are not here");
  read([passed](int lane) -> const T& { return *reinterpret_cast<const T*>(passed[lane]); });
  services->exchange(0xffffffff, 0, line);
}

namespace ptx {

// Four 8 by 8 matrices of 16 bits: lane l has the address of row l % 8 of matrix l / 8. Of each
// matrix it gets the elements 2 (l % 4) and one more of row l / 4; transposed, of that column.
inline void ldmatrix(unsigned* registers, std::size_t address, bool transposed, unsigned line) {
  if (address % 16) services->fault(line, "ldmatrix from an address that is no multiple of 16");
  among_lanes(address, line, [&](auto address_of) {
    const int me = lane();
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int major = me / 4, minor = me % 4 * 2 + i;
        const int row = transposed ? minor : major, column = transposed ? major : minor;
        const auto* begin = reinterpret_cast<const std::uint16_t*>(address_of(matrix * 8 + row));
        pair[i] = begin[column];
      }
      registers[matrix] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
    }
  });
}

#define EMULATED_LDMATRIX(name, transposed)                                                    \
  inline void name(unsigned& a, unsigned& b, unsigned& c, unsigned& d, std::size_t address,    \
                   unsigned line = __builtin_LINE()) {                                         \
    unsigned registers[4];                                                                     \
    ldmatrix(registers, address, transposed, line);                                            \
    a = registers[0], b = registers[1], c = registers[2], d = registers[3];                    \
  }
EMULATED_LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_shared_b16, false)
EMULATED_LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)
#undef EMULATED_LDMATRIX

inline float of_bf16(std::uint16_t bits) {
  const unsigned wide = static_cast<unsigned>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline float of_f16(std::uint16_t bits) {
  __half value;
  std::memcpy(&value, &bits, sizeof bits);
  return static_cast<float>(value);
}

// The low 13 bits do not count.
inline float of_tf32(std::uint32_t bits) {
  bits &= 0xffffe000;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Fragments {
  unsigned a[4], b[2];
};

// d = a b + c of an m16n8 product whose terms have the type `Bits`. The terms of a lane's registers
// are those of t = l % 4: t itself of 32 bits, 2 t and 2 t + 1 of 16; a1 and a3 are of 8 rows
// further on, a2, a3 and b1 of half of the terms further on. Exact but for the last rounding.
template <typename Bits>
void mma_m16n8(float* c, const Fragments& mine, float (*number)(Bits), unsigned line) {
  constexpr int packed = sizeof(unsigned) / sizeof(Bits), terms = 8 * packed;
  among_lanes(mine, line, [&](auto of_lane) {
    auto element = [&](unsigned word, int term) {
      Bits parts[packed];
      std::memcpy(parts, &word, sizeof word);
      return static_cast<double>(number(parts[term % packed]));
    };
    const int me = lane();
    for (int i = 0; i < 4; ++i) {
      const int row = me / 4, column = me % 4 * 2 + i % 2, lower = i / 2;
      double sum = c[i];
      for (int term = 0; term < terms; ++term) {
        const int second = term / (terms / 2), thread = term % (terms / 2) / packed;
        const unsigned a = of_lane(row * 4 + thread).a[lower + 2 * second];
        const unsigned b = of_lane(column * 4 + thread).b[second];
        sum += element(a, term) * element(b, term);
      }
      c[i] = static_cast<float>(sum);
    }
  });
}

#define EMULATED_MMA(name, Bits, number)                                                       \
  inline void name(float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1,       \
                   unsigned a2, unsigned a3, unsigned b0, unsigned b1,                         \
                   unsigned line = __builtin_LINE()) {                                         \
    float c[4] = {c0, c1, c2, c3};                                                             \
    mma_m16n8<Bits>(c, {{a0, a1, a2, a3}, {b0, b1}}, number, line);                            \
    c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];                                                \
  }
EMULATED_MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, std::uint16_t, of_bf16)
EMULATED_MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, std::uint16_t, of_f16)
EMULATED_MMA(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, std::uint32_t, of_tf32)
#undef EMULATED_MMA

// To the nearest number of 10 bits of mantissa, ties away from zero.
inline void cvt_rna_tf32_f32(unsigned& rounded, float value) {
  std::memcpy(&rounded, &value, sizeof rounded);
  if (std::isfinite(value)) rounded += 0x1000;
  rounded &= 0xffffe000;
  if (std::isnan(value)) rounded = 0x7fffffff;
}

}  // namespace ptx
}  // namespace emulator

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
