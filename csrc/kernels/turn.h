// Tensors as Hugging Face folders have them -> as GGUF files have them, where that is more than taking rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quintet {

// Of matrices [rows, columns] of items of ``size`` bytes, one after the other, every ``step``-th column from ``start`` on, as a row. Throws
// std::invalid_argument unless the data are such.
std::string turned(std::string_view data, size_t size, size_t rows, size_t columns, size_t start, size_t step);

// MXFP4 (Open Compute Project, Microscaling Formats 1.0) with codes and scales apart, every ``step``-th row from ``start`` on: codes are
// [rows, blocks, 16 bytes], neighbours in a byte, scales [rows, blocks]. GGUF has a block's scale before its codes, and the first 16 of 32
// in the low halves of bytes. Throws likewise.
std::string mxfp4(std::string_view codes, std::string_view scales, size_t blocks, size_t start, size_t step);

}  // namespace quintet
