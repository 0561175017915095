#pragma once

namespace lockstep {

/// Tells the C library's allocator to keep freed memory instead of giving it back to the system, where every step
/// would fetch its activations and gradients anew, page by page (about a tenth of a step of a small CNN).
///
/// For the whole process, so it is the program's choice and not the trainer's: call it first in main. The process
/// keeps the memory of its largest step. Does nothing where the C library is not glibc.
void keep_freed_memory();

}  // namespace lockstep
