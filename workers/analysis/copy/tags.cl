// Pointers as tags: shared by the copies of the memory analysis and the work counts, before their
// own hooks.
//
// The kernel's pointers are tags, not addresses: bit 62, the buffer's number from bit 44 on, and an
// offset plus 2^43. Code may add to tags, copy and cast them; only an access reads the offset and
// folds it into the real buffer. So no access can fault, and no pointer arithmetic is missed.
// Pointers to the kernel's own variables are tags, too; their numbers follow those of the buffers.
#define LP_BIAS 0x0000080000000000ul
#define LP_TAG(k) (0x4000000000000000ul + LP_BIAS + ((ulong)(k) << 44))

// Returns the number of a tag; LP_TAGS for any other value.
uint lp_number(ulong address)
{
    uint k = (uint)((address >> 44) & 0x3fffful);
    return (address >> 62) == 1ul && k != LP_SPARE && k < LP_TAGS ? k : LP_TAGS;
}

// Returns an access's offset in a variable of `size` bytes: unchanged if it fits, else folded.
ulong lp_within(ulong at, ulong bytes, ulong size)
{
    if (bytes >= size)
        return 0;
    if (at <= size - bytes)
        return at;
    ulong aligned = ~((bytes & -bytes) - 1ul);
    return min(at % size & aligned, size - bytes & aligned);
}
