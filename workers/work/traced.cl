// Which work-items access which bytes: a histogram for each buffer and use, in two runs.
//
// c->touched: word 0 is how many work-items a column has, 0 in the first run, which finds the range of the accesses. Then
// LP_TRACE_HEAD words for each buffer and use: lowest byte; the one behind the highest; accesses; accesses outside of the
// buffer; the first byte of row 0; log2 of the bytes of a row; the buffer's bytes. Then LP_TRACE_COLUMNS columns of
// LP_TRACE_ROWS counts for each buffer and use. The host (tracing.py) reads the first run and places the second.
#define LP_TRACE_SLOTS (LP_BUFFERS * LP_TRACE_USES)

// By site: which uses its accesses are, one bit each.
__constant uint lp_uses_of[] = LP_USES_OF;

__attribute__((noinline)) void lp_trace(lp_ctx *c, uint k, uint site, ulong at, ulong bytes)
{
    __global ulong *notes = c->touched;
    ulong item = (c->watched - 1) * c->in[3] * c->in[4] * c->in[5] + c->lane;
    for (uint use = 0; use < LP_TRACE_USES; ++use) {
        if (!(lp_uses_of[site] >> use & 1u))
            continue;
        ulong slot = k * LP_TRACE_USES + use;
        __global ulong *head = notes + 1 + slot * LP_TRACE_HEAD;
        if (at >= head[6]) { // one below the start is the largest number there is
            ++head[3];
            continue;
        }
        ulong end = min(at + bytes, head[6]);
        ++head[2];
        if (!notes[0]) {
            head[0] = min(head[0], at);
            head[1] = max(head[1], end);
            continue;
        }
        ulong column = item / notes[0];
        if (at < head[4] || column >= LP_TRACE_COLUMNS)
            continue;
        __global ulong *rows = notes + 1 + LP_TRACE_SLOTS * LP_TRACE_HEAD + (slot * LP_TRACE_COLUMNS + column) * LP_TRACE_ROWS;
        ulong last = min((end - 1 - head[4]) >> head[5], LP_TRACE_ROWS - 1ul);
        for (ulong row = (at - head[4]) >> head[5]; row <= last; ++row)
            ++rows[row];
    }
}
