// Which work-items access which bytes: a histogram for each buffer and use, in two runs.
//
// c->touched begins with the number of work-items of a column, which is 0 in the first run; that
// run finds the range of the accesses. Then LP_TRACE_HEAD words follow for each buffer and use:
// lowest accessed byte; the byte behind the highest accessed one; number of accesses; number of
// accesses outside of the buffer; first byte of row 0; log2 of the bytes of a row; bytes of the
// buffer. Then LP_TRACE_COLUMNS columns of LP_TRACE_ROWS counts follow for each buffer and use. The
// host (tracing.py) reads the words of the first run and sets the rows and columns of the second.
#define LP_TRACE_SLOTS (LP_BUFFERS * LP_TRACE_USES)

// The uses of each site, one bit for each use.
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
        if (at >= head[6]) { // an offset below the start wraps to a huge number
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
