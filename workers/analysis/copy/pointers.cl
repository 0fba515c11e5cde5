// Hooks for pointers, except for plain accesses. They use lp_touch, base and mask of their copy.

// An access through a pointer to private memory, mostly to a whole variable (a function's result).
ulong lp_private(lp_ctx *c, ulong address, ulong bytes)
{
    uint k = (uint)((address >> 44) & 0x3fffful);
    if (k >= LP_BUFFERS && k < LP_TAGS && c->mask[k] == bytes && address == LP_TAG(k))
        return c->base[k];
    return lp_touch(c, 0, address, bytes);
}

// Returns the tag of a variable whose address is taken, and registers its real address and size.
ulong lp_named(lp_ctx *c, uint variable, ulong address, ulong bytes)
{
    uint k = LP_BUFFERS + variable;
    c->base[k] = address;
    c->mask[k] = bytes;
    return LP_TAG(k);
}

// Makes the tag of a variable invalid when the function that has it returns.
#define LP_FORGET(VARIABLE) lp_c->mask[LP_BUFFERS + VARIABLE] = 0

// Returns how many of `wanted` bytes lie behind an address.
ulong lp_room(lp_ctx *c, ulong address, ulong wanted)
{
    uint k = lp_number(address);
    if (k == LP_TAGS)
        return 0;
    if (k < LP_BUFFERS)
        return min(wanted, c->mask[k] + 1 - (address & c->mask[k]));
    return min(wanted,
        c->mask[k] - lp_within((address & 0xffffffffffful) - LP_BIAS, wanted, c->mask[k]));
}
