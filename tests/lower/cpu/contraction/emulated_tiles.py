"""Tile registers as Intel's manual has them, in C: kernels that use them run on any processor.

What is emulated are the functions of `graphgrad.lower.cpu.tile_products`, each of one instruction.
Of the manual (Intel 64 Architectures Manual, volume 2, ``TDPBF16PS``, ``TILELOADD``, ...): the sums
of first and of second numbers apart, each by fused multiply-adds; numbers below the normal ones are
zero, in operands and in results; rows and columns beyond a register's shape become zero. Shapes
that do not fit, and registers without any, end the process, as the processor would.
"""

import ctypes
import re
import subprocess
from pathlib import Path

from graphgrad.lower.cpu import tile_products

_SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static __thread unsigned char shapes[64];
static __thread uint32_t tiles[8][16][16];
static int configured;  // how often, by all threads
int emulated_uses(void) { return configured; }

static int rows(int t) {
  if (shapes[0] != 1 || shapes[48 + t] < 1 || shapes[48 + t] > 16) abort();
  return shapes[48 + t];
}
static int words(int t) {
  uint16_t bytes;
  memcpy(&bytes, shapes + 16 + 2 * t, 2);
  if (bytes < 4 || bytes > 64 || bytes % 4) abort();
  return bytes / 4;
}
static void clear(int t) {
  rows(t);
  memset(tiles[t], 0, sizeof tiles[t]);
}
static void load(int t, const char *at, int64_t stride) {
  clear(t);
  for (int m = 0; m < rows(t); m++) memcpy(tiles[t][m], at + m * stride, 4 * words(t));
}
static void store(int t, char *at, int64_t stride) {
  for (int m = 0; m < rows(t); m++) memcpy(at + m * stride, tiles[t][m], 4 * words(t));
}
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static float number(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return flushed(x);
}
static void add(int c, int a, int b) {
  if (rows(a) != rows(c) || words(a) != rows(b) || words(b) != words(c)) abort();
  for (int m = 0; m < rows(c); m++)
    for (int n = 0; n < words(c); n++) {
      float low = 0, high = 0;
      for (int k = 0; k < words(a); k++) {
        uint32_t x = tiles[a][m][k], y = tiles[b][k][n];
        low = flushed(fmaf(number(x << 16), number(y << 16), low));
        high = flushed(fmaf(number(x & 0xffff0000), number(y & 0xffff0000), high));
      }
      float total = flushed(number(tiles[c][m][n]) + flushed(low + high));
      memcpy(&tiles[c][m][n], &total, 4);
    }
}
int graphgrad_tile_load_shapes(const void *at) {
  memcpy(shapes, at, 64);
  memset(tiles, 0, sizeof tiles);
  __atomic_add_fetch(&configured, 1, __ATOMIC_RELAXED);
  return 0;
}
int graphgrad_tile_release(void) {
  memset(shapes, 0, 64);
  return 0;
}
"""


def _functions() -> str:
    """The function of each other instruction, with the registers of its assembly."""
    lines = []
    for name, arguments, text in re.findall(
        r"@(graphgrad_tile_\w+)\(([^)]*)\)[^{]*{[^\"]*\"([^\"]*)\"", tile_products._INSTRUCTIONS
    ):
        instruction, registers = text.split()[0], re.findall(r"%tmm(\d)", text)
        parameters = "char *at, int64_t stride, const void *buffer" if arguments else "void"
        call = {
            "tilezero": "clear({0})",
            "tileloadd": "load({0}, at, stride)",
            "tilestored": "store({0}, at, stride)",
            "tdpbf16ps": "add({2}, {1}, {0})",  # the destination is the last in this syntax
        }.get(instruction)
        if call is not None:
            lines.append(f"int {name}({parameters}) {{ {call.format(*registers)}; return 0; }}")
    return "\n".join(lines)


DECLARATIONS = re.sub(
    r"define linkonce_odr (i32 @\w+\([^)]*\))[^{]*{.*?\n}",
    r"declare \1",
    tile_products._INSTRUCTIONS,
    flags=re.DOTALL,
)
"""What kernels are told of the functions in place of their definitions."""


def load(folder: Path) -> ctypes.CDLL:
    """Compile the emulator, and give its functions to all code that is loaded afterwards."""
    source, library = folder / "tiles.c", folder / "tiles.so"
    source.write_text(_SOURCE + _functions(), encoding="utf-8")
    options = ["-O2", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["gcc", *options, str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
