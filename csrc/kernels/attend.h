// Attention of query rows over the pages of one KV head, once, over the 16-lane type V of the including file. It has two ways: one for up to four
// rows (attend_few.h) and one for many (attend_block.h). In both a score is one chain of FMAs in the order of the dimensions and an output one
// in the order of the tokens, however many chains run side by side: so they give the same bits.
#pragma once
#include "kernels/attend_block.h"
#include "kernels/attend_few.h"

namespace quintet {
namespace {

template <class Cell> inline void attend_over(const AttendOver<Cell>& a) {
  if (a.rows <= kFewRows) attend_few(a);
  else attend_block(a);
}

void attend(const AttendOver<uint16_t>& a) { attend_over(a); }
void attend8(const AttendOver<int8_t>& a) { attend_over(a); }

}  // namespace
}  // namespace quintet
