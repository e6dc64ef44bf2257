/* CRC-32C (Castagnoli, RFC 3720 appendix B.4): the processor's instruction where it has one, a table where not. */
#ifndef PENSTOCK_CRC32C_H
#define PENSTOCK_CRC32C_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32c_table[256];

static void crc32c_make_table(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
    crc32c_table[byte] = crc;
  }
}

/* What a checksum becomes by CRC32C_PART zero bytes, for each value of each of its four bytes. */
enum { CRC32C_PART = 1024 };
static uint32_t crc32c_past_part[4][256];

static void crc32c_make_past_part(void) {
  uint32_t of_bit[32];
  for (int bit = 0; bit < 32; bit++) {
    uint32_t crc = 1u << bit;
    for (int i = 0; i < CRC32C_PART; i++) crc = (crc >> 8) ^ crc32c_table[crc & 0xFF];
    of_bit[bit] = crc;
  }
  for (int place = 0; place < 4; place++)
    for (int value = 0; value < 256; value++) {
      uint32_t crc = 0;
      for (int bit = 0; bit < 8; bit++)
        if (value >> bit & 1) crc ^= of_bit[8 * place + bit];
      crc32c_past_part[place][value] = crc;
    }
}

static inline uint32_t crc32c_skip_part(uint32_t crc) {
  return crc32c_past_part[0][crc & 0xFF] ^ crc32c_past_part[1][crc >> 8 & 0xFF] ^ crc32c_past_part[2][crc >> 16 & 0xFF]
         ^ crc32c_past_part[3][crc >> 24];
}

static uint32_t crc32c_by_table(uint32_t crc, const unsigned char *data, size_t length) {
  while (length--) crc = (crc >> 8) ^ crc32c_table[(crc ^ *data++) & 0xFF];
  return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
/* The instruction takes three cycles and can begin in each: of what is long, three parts at a time, whose checksums are then joined. */
__attribute__((target("sse4.2"))) static uint32_t crc32c_by_instruction(uint32_t crc, const unsigned char *data, size_t length) {
  uint64_t wide = crc;
  for (; length >= 3 * CRC32C_PART; data += 3 * CRC32C_PART, length -= 3 * CRC32C_PART) {
    uint64_t second = 0, third = 0, words[3];
    for (size_t at = 0; at < CRC32C_PART; at += 8) {
      for (int part = 0; part < 3; part++) memcpy(&words[part], data + part * CRC32C_PART + at, 8);
      wide = _mm_crc32_u64(wide, words[0]);
      second = _mm_crc32_u64(second, words[1]);
      third = _mm_crc32_u64(third, words[2]);
    }
    wide = crc32c_skip_part(crc32c_skip_part((uint32_t)wide) ^ (uint32_t)second) ^ (uint32_t)third;
  }
  for (; length >= 8; data += 8, length -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = (uint32_t)wide;
  while (length--) crc = _mm_crc32_u8(crc, *data++);
  return crc;
}
static int crc32c_has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t crc32c_by_instruction(uint32_t crc, const unsigned char *data, size_t length) {
  for (; length >= 8; data += 8, length -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    crc = __crc32cd(crc, word);
  }
  while (length--) crc = __crc32cb(crc, *data++);
  return crc;
}
static int crc32c_has_instruction(void) { return 1; }
#else
#define crc32c_by_instruction crc32c_by_table
static int crc32c_has_instruction(void) { return 0; }
#endif

static uint32_t (*crc32c_update)(uint32_t, const unsigned char *, size_t) = crc32c_by_table;

static void crc32c_choose(void) {
  crc32c_make_table();
  crc32c_make_past_part();
  if (crc32c_has_instruction()) crc32c_update = crc32c_by_instruction;
}

static inline uint32_t crc32c(const void *data, size_t length) {
  return ~crc32c_update(0xFFFFFFFFu, (const unsigned char *)data, length);
}
#endif
