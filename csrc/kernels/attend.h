// Attention of query rows over the pages of one KV head, once, over the 16-lane type V of the including file. Cells of fp16 have two ways:
// one for up to four rows (attend_few.h) and one for many (attend_block.h). In both a score is one chain of FMAs in the order of the
// dimensions and an output one in the order of the tokens, however many chains run side by side: so they give the same bits. Cells of
// bytes: attend_bytes.h.
#pragma once
#include "kernels/attend_block.h"
#include "kernels/attend_bytes.h"
#include "kernels/attend_few.h"

namespace quintet {
namespace {

void attend(const AttendOver<uint16_t>& a) {
  if (a.rows <= kFewRows) attend_few(a);
  else attend_block(a);
}

void attend8(const AttendOver<uint8_t>& a) { attend_bytes(a); }

}  // namespace
}  // namespace quintet
