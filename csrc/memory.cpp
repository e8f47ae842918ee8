#include "memory.h"
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace quintet {
namespace {
constexpr size_t kHugePage = size_t(2) << 20, kRegion = size_t(64) << 20, kAlign = 64;
}

Region::Region(size_t size) : mapped_(size + kHugePage), size_(size) {
  if (size > std::numeric_limits<size_t>::max() - 2 * kHugePage) throw std::bad_alloc();
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(mapping_, mapped_, MADV_HUGEPAGE);  // a kernel without them says no, and that is well
#endif
  data_ = static_cast<uint8_t*>(mapping_) + (kHugePage - reinterpret_cast<uintptr_t>(mapping_) % kHugePage) % kHugePage;
}

Region::Region(Region&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)), mapped_(other.mapped_), data_(other.data_), size_(other.size_) {}

Region::~Region() {
  if (mapping_) munmap(mapping_, mapped_);
}

void Region::touch(size_t from, size_t to) {
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  for (size_t at = from; at < to; at = (at / page + 1) * page) {
    volatile uint8_t& byte = data_[at];
    byte = byte;
  }
}

void Region::drop(size_t from, size_t to) {
  const auto page = size_t(sysconf(_SC_PAGESIZE));  // data_ begins with one
  from = (from + page - 1) / page * page;
  to = to / page * page;
  if (from < to) madvise(data_ + from, to - from, MADV_DONTNEED);
}

uint8_t* Arena::take(size_t size) {
  if (size > std::numeric_limits<size_t>::max() - kAlign) throw std::bad_alloc();
  const size_t taken = (size + kAlign - 1) / kAlign * kAlign;
  if (regions_.empty() || regions_.back().size() - used_ < taken) {
    regions_.emplace_back(std::max(taken, kRegion));
    used_ = 0;
  }
  uint8_t* piece = regions_.back().data() + used_;
  used_ += taken;
  return piece;
}

}  // namespace quintet
