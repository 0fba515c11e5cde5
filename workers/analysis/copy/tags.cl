// Pointers as tags: what the copies of the memory analysis and of the work counts share, before their own hooks.
//
// The kernel's pointers are tags, not addresses: bit 62, the buffer's number from bit 44, an offset from
// 2^43. They may wander and be copied and cast as pointers do; only at an access is the offset looked at and
// folded into the real buffer. So no access can fault, and no pointer arithmetic can be missed. Pointers into the
// kernel's own variables are tags, too, with numbers above those of the buffers.
#define LP_BIAS 0x0000080000000000ul
#define LP_TAG(k) (0x4000000000000000ul + LP_BIAS + ((ulong)(k) << 44))

// The number of a tag; LP_TAGS for what is none.
uint lp_number(ulong address)
{
    uint k = (uint)((address >> 44) & 0x3fffful);
    return (address >> 62) == 1ul && k != LP_SPARE && k < LP_TAGS ? k : LP_TAGS;
}

// Where in a variable of `size` bytes an access begins: where it was meant to if it fits, else folded back.
ulong lp_within(ulong at, ulong bytes, ulong size)
{
    if (bytes >= size)
        return 0;
    if (at <= size - bytes)
        return at;
    ulong aligned = ~((bytes & -bytes) - 1ul);
    return min(at % size & aligned, size - bytes & aligned);
}
