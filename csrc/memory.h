// Large memory, on huge pages where the system grants them: weights stream and attention jumps from page to page, and with 4 KiB pages both
// spend their time in the TLB (a quarter to two fifths of the bandwidth of one thread on a virtual machine, docs/decisions/0007).
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace quintet {

// Zero bytes, aligned to a huge page; they become resident as they are written.
class Region {
 public:
  explicit Region(size_t size);  // throws std::bad_alloc
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Have the bytes between two offsets resident, as they would be once they are written.
  void touch(size_t from, size_t to);
  // Give the whole system pages between two offsets back; they are zero when they are next looked at.
  void drop(size_t from, size_t to);

 private:
  void* mapping_;
  size_t mapped_;
  uint8_t* data_;
  size_t size_;
};

// Many pieces of memory that live equally long, side by side: pieces smaller than a huge page share one.
class Arena {
 public:
  // Zero bytes, 64-byte aligned, valid as long as the arena; throws std::bad_alloc.
  uint8_t* take(size_t size);

 private:
  std::vector<Region> regions_;
  size_t used_ = 0;  // of the last region
};

// A vector that begins a line of the cache. 16 floats are a line: where they begin one, no load takes two, and threads that write
// neighbours of such 16 do not take a line from each other.
template <class T> struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U> LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAllocator&) const = default;
};
using FloatLines = std::vector<float, LineAllocator<float>>;

}  // namespace quintet
