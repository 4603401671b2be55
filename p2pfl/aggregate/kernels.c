/* The loops of `distances`, `columns` and `centered` in blocks that stay in the cache, without a pass over memory for
 * each operation. `kernels.py` compiles and calls them.
 *
 * What is done to each coordinate are numpy's IEEE operations in numpy's order, so results are the same bits. Sums over
 * coordinates are kept in eight parts that are added in a fixed order: the same bits on every processor. Both need
 * -ffp-contract=off. A function returns 0, or 1 if memory is short or a result is not finite; then numpy is used.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef CLONES /* one copy for each kind of processor, chosen when the library is loaded */
#define CLONED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONED
#endif

enum { COLUMNS = 512, DEEP = 128, LANES = 8, TILE = 4, PARTS = DEEP / LANES };
typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));

#define MEMORY(KIND, NAME, COUNT) KIND *NAME = aligned_alloc(64, (sizeof(KIND) * (COUNT) + 63) / 64 * 64)
/* Load the next COUNT values of a row into the cache: with twenty rows at once no processor guesses them all. */
#define AHEAD(ROW, COUNT)                                                                                              \
    for (long ahead = 0; ahead < (COUNT); ahead += 64 / (long)sizeof(*(ROW))) __builtin_prefetch((ROW) + (COUNT) + ahead)
#define FINITE(VALUE, MOST) ((VALUE) <= (MOST) && (VALUE) >= -(MOST))
#define LESS(A, B) ((A) < (B) ? (A) : (B))
#define MORE(A, B) ((A) > (B) ? (A) : (B))

/* --- sums over coordinates ------------------------------------------------------------------------------------- */

static double sum_of(const lanes *parts) {
    const double *v = (const double *)parts;
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/* Add the products of rows i..i+3 with rows j..j+3 of `gaps` (n, DEEP) to `sums` (n, n). Rows beyond n repeat the
 * first. */
static inline __attribute__((always_inline)) void tile(const lanes *gaps, int n, int i, int j, lanes *sums) {
    const lanes *left[TILE], *right[TILE];
    lanes here[TILE][TILE];
    int height = LESS(n - i, TILE), width = LESS(n - j, TILE);
    for (int a = 0; a < TILE; a++) {
        left[a] = gaps + (size_t)(i + (a < height ? a : 0)) * PARTS;
        right[a] = gaps + (size_t)(j + (a < width ? a : 0)) * PARTS;
        for (int b = 0; b < TILE; b++) here[a][b] = (lanes){0};
    }
    for (int k = 0; k < PARTS; k++)
        for (int a = 0; a < TILE; a++)
            for (int b = 0; b < TILE; b++) here[a][b] += left[a][k] * right[b][k];
    for (int a = 0; a < height; a++)
        for (int b = 0; b < width; b++) sums[(size_t)(i + a) * n + j + b] += here[a][b];
}

/* out (n, n): the inner products of the rows minus the center, over the columns from `from` to `to`. */
#define INNER_PRODUCTS(NAME, REAL)                                                                                     \
    CLONED int NAME(const REAL *const *rows, const REAL *center, int n, long from, long to, double *out) {             \
        MEMORY(lanes, gaps, (size_t)n * PARTS);                                                                        \
        MEMORY(lanes, sums, (size_t)n * n);                                                                            \
        int failed = !gaps || !sums;                                                                                   \
        if (!failed) memset(sums, 0, sizeof(lanes) * n * n);                                                           \
        for (long first = from; !failed && first < to; first += DEEP) {                                                \
            long size = LESS(to - first, DEEP);                                                                        \
            const REAL *middle = center + first;                                                                       \
            if (size < DEEP) memset(gaps, 0, sizeof(lanes) * n * PARTS);                                               \
            for (int i = 0; i < n; i++) {                                                                              \
                double *gap = (double *)(gaps + (size_t)i * PARTS);                                                    \
                const REAL *row = rows[i] + first;                                                                     \
                AHEAD(row, DEEP);                                                                                      \
                for (long k = 0; k < size; k++) gap[k] = (double)row[k] - (double)middle[k];                           \
            }                                                                                                          \
            for (int i = 0; i < n; i += TILE)                                                                          \
                for (int j = 0; j <= i; j += TILE) tile(gaps, n, i, j, sums);                                          \
        }                                                                                                              \
        for (int i = 0; !failed && i < n; i++)                                                                         \
            for (int j = 0; j <= i; j++) out[i * n + j] = out[j * n + i] = sum_of(sums + (size_t)i * n + j);           \
        free(gaps);                                                                                                    \
        free(sums);                                                                                                    \
        return failed;                                                                                                 \
    }
INNER_PRODUCTS(inner_products_f32, float)
INNER_PRODUCTS(inner_products_f64, double)

/* out (n): the squared distances of the rows from the center, over the columns from `from` to `to`. */
#define SQUARES(NAME, REAL)                                                                                            \
    CLONED int NAME(const REAL *const *rows, const REAL *center, int n, long from, long to, double *out) {             \
        for (int i = 0; i < n; i++) {                                                                                  \
            const REAL *row = rows[i];                                                                                 \
            lanes sums[2] = {{0}, {0}}, gap;                                                                           \
            long k = from;                                                                                             \
            for (; k + 2 * LANES <= to; k += 2 * LANES)                                                                \
                for (int part = 0; part < 2; part++) {                                                                 \
                    for (int lane = 0; lane < LANES; lane++)                                                           \
                        gap[lane] = (double)row[k + part * LANES + lane] - (double)center[k + part * LANES + lane];    \
                    sums[part] += gap * gap;                                                                           \
                }                                                                                                      \
            for (; k < to; k++) {                                                                                      \
                double last = (double)row[k] - (double)center[k];                                                      \
                ((double *)sums)[0] += last * last;                                                                    \
            }                                                                                                          \
            sums[0] += sums[1];                                                                                        \
            out[i] = sum_of(sums);                                                                                     \
        }                                                                                                              \
        return 0;                                                                                                      \
    }
SQUARES(squares_f32, float)
SQUARES(squares_f64, double)

/* --- coordinates ------------------------------------------------------------------------------------------------- */

/* Compare the rows of `wires` (n, COLUMNS) as a sorting network says: `steps` (count, 3) has the place of the lower
 * value, that of the higher one, and which are needed: 1 the lower, 2 the higher, 3 both. */
#define SORT(REAL)                                                                                                     \
    for (long step = 0; step < count; step++) {                                                                        \
        REAL *restrict one = wires + (size_t)steps[3 * step] * COLUMNS;                                                \
        REAL *restrict other = wires + (size_t)steps[3 * step + 1] * COLUMNS;                                          \
        int needed = steps[3 * step + 2];                                                                              \
        if (needed == 3)                                                                                               \
            for (int k = 0; k < COLUMNS; k++) {                                                                        \
                REAL a = one[k], b = other[k];                                                                         \
                one[k] = LESS(a, b);                                                                                   \
                other[k] = MORE(a, b);                                                                                 \
            }                                                                                                          \
        else if (needed == 1)                                                                                          \
            for (int k = 0; k < COLUMNS; k++) one[k] = LESS(one[k], other[k]);                                         \
        else                                                                                                           \
            for (int k = 0; k < COLUMNS; k++) other[k] = MORE(one[k], other[k]);                                       \
    }

/* out (d): the sum of shares[i] rows[i]; or, with `even`, shares[0] times the sum of the rows. */
#define COMBINED(NAME, REAL, MOST)                                                                                     \
    CLONED int NAME(const REAL *const *rows, const double *shares, int n, int even, long from, long to, REAL *out) {               \
        int failed = 0;                                                                                                \
        for (long first = from; first < to; first += COLUMNS) {                                                            \
            long size = LESS(to - first, COLUMNS);                                                                      \
            REAL *sum = out + first;                                                                                   \
            REAL share = even ? 1 : (REAL)shares[0];                                                                   \
            for (long k = 0; k < size; k++) sum[k] = rows[0][first + k] * share;                                       \
            for (int i = 1; i < n; i++) {                                                                              \
                const REAL *row = rows[i] + first;                                                                     \
                share = even ? 1 : (REAL)shares[i];                                                                    \
                AHEAD(row, COLUMNS);                                                                                   \
                for (long k = 0; k < size; k++) sum[k] += row[k] * share;                                              \
            }                                                                                                          \
            share = even ? (REAL)shares[0] : 1;                                                                        \
            for (long k = 0; k < size; k++) {                                                                          \
                sum[k] *= share;                                                                                       \
                failed |= !FINITE(sum[k], MOST);                                                                       \
            }                                                                                                          \
        }                                                                                                              \
        return failed;                                                                                                 \
    }
COMBINED(combined_f32, float, 3.40282346638528859812e+38f)
COMBINED(combined_f64, double, 1.79769313486231570815e+308)

/* out (d): own + the sum of pulls[j] (rows[j] - own). */
#define MOVED(NAME, REAL, MOST)                                                                                        \
    CLONED int NAME(const REAL *own, const REAL *const *rows, const double *pulls, int n, long from, long to, REAL *out) {         \
        REAL sum[COLUMNS];                                                                                             \
        int failed = 0;                                                                                                \
        for (long first = from; first < to; first += COLUMNS) {                                                            \
            long size = LESS(to - first, COLUMNS);                                                                      \
            const REAL *here = own + first;                                                                            \
            for (long k = 0; k < size; k++) sum[k] = 0;                                                                \
            for (int j = 0; j < n; j++) {                                                                              \
                const REAL *row = rows[j] + first;                                                                     \
                REAL pull = (REAL)pulls[j];                                                                            \
                AHEAD(row, COLUMNS);                                                                                   \
                for (long k = 0; k < size; k++) sum[k] += (row[k] - here[k]) * pull;                                   \
            }                                                                                                          \
            for (long k = 0; k < size; k++) {                                                                          \
                out[first + k] = sum[k] + here[k];                                                                     \
                failed |= !FINITE(out[first + k], MOST);                                                               \
            }                                                                                                          \
        }                                                                                                              \
        return failed;                                                                                                 \
    }
MOVED(moved_f32, float, 3.40282346638528859812e+38f)
MOVED(moved_f64, double, 1.79769313486231570815e+308)

/* out (d): the mean of the sorted values at the places from `start` to `stop`. */
#define TRIMMED(NAME, REAL, MOST)                                                                                      \
    CLONED int NAME(const REAL *const *rows, int n, const int32_t *steps, long count, int start, int stop, long from, long to,     \
                    REAL *out) {                                                                                       \
        MEMORY(REAL, wires, (size_t)n * COLUMNS);                                                                      \
        if (!wires) return 1;                                                                                          \
        memset(wires, 0, sizeof(REAL) * n * COLUMNS);                                                                  \
        REAL share = (REAL)(1.0 / (stop - start));                                                                     \
        int failed = 0;                                                                                                \
        for (long first = from; first < to; first += COLUMNS) {                                                            \
            long size = LESS(to - first, COLUMNS);                                                                      \
            REAL *mean = out + first;                                                                                  \
            for (int i = 0; i < n; i++) {                                                                              \
                const REAL *row = rows[i] + first;                                                                     \
                AHEAD(row, COLUMNS);                                                                                   \
                memcpy(wires + (size_t)i * COLUMNS, row, sizeof(REAL) * size);                                         \
            }                                                                                                          \
            SORT(REAL)                                                                                                 \
            memcpy(mean, wires + (size_t)start * COLUMNS, sizeof(REAL) * size);                                        \
            for (int i = start + 1; i < stop; i++)                                                                     \
                for (long k = 0; k < size; k++) mean[k] += wires[(size_t)i * COLUMNS + k];                             \
            if (stop - start > 1)                                                                                      \
                for (long k = 0; k < size; k++) mean[k] *= share;                                                      \
            for (long k = 0; k < size; k++) failed |= !FINITE(mean[k], MOST);                                          \
        }                                                                                                              \
        free(wires);                                                                                                   \
        return failed;                                                                                                 \
    }
TRIMMED(trimmed_f32, float, 3.40282346638528859812e+38f)
TRIMMED(trimmed_f64, double, 1.79769313486231570815e+308)

/* out (d): the mean of the `near` values nearest to the median; on ties, the lower value. `steps` sort completely. */
#define AROUND_MEDIAN(NAME, REAL)                                                                                      \
    CLONED int NAME(const REAL *const *rows, int n, const int32_t *steps, long count, int near, long from, long to, REAL *out) {   \
        MEMORY(REAL, wires, (size_t)n * COLUMNS);                                                                      \
        if (!wires) return 1;                                                                                          \
        memset(wires, 0, sizeof(REAL) * n * COLUMNS);                                                                  \
        double median[COLUMNS], sum[COLUMNS];                                                                          \
        int32_t start[COLUMNS];                                                                                        \
        for (long first = from; first < to; first += COLUMNS) {                                                            \
            long size = LESS(to - first, COLUMNS);                                                                      \
            for (int i = 0; i < n; i++) {                                                                              \
                const REAL *row = rows[i] + first;                                                                     \
                AHEAD(row, COLUMNS);                                                                                   \
                memcpy(wires + (size_t)i * COLUMNS, row, sizeof(REAL) * size);                                         \
            }                                                                                                          \
            SORT(REAL)                                                                                                 \
            const REAL *low = wires + (size_t)((n - 1) / 2) * COLUMNS, *high = wires + (size_t)(n / 2) * COLUMNS;      \
            for (int k = 0; k < COLUMNS; k++) {                                                                        \
                median[k] = 0.5 * (double)low[k] + 0.5 * (double)high[k];                                              \
                start[k] = 0;                                                                                          \
                sum[k] = 0;                                                                                            \
            }                                                                                                          \
            for (int i = 0; i + near < n; i++) {                                                                       \
                const REAL *leaves = wires + (size_t)i * COLUMNS, *enters = leaves + (size_t)near * COLUMNS;           \
                for (int k = 0; k < COLUMNS; k++)                                                                      \
                    start[k] += median[k] - (double)leaves[k] > (double)enters[k] - median[k];                         \
            }                                                                                                          \
            for (int i = 0; i < n; i++) {                                                                              \
                const REAL *row = wires + (size_t)i * COLUMNS;                                                         \
                for (int k = 0; k < COLUMNS; k++)                                                                      \
                    sum[k] += i >= start[k] && i < start[k] + near ? (double)row[k] / near : 0.0;                      \
            }                                                                                                          \
            for (long k = 0; k < size; k++) out[first + k] = (REAL)sum[k];                                             \
        }                                                                                                              \
        free(wires);                                                                                                   \
        return 0;                                                                                                      \
    }
AROUND_MEDIAN(around_median_f32, float)
AROUND_MEDIAN(around_median_f64, double)

/* out (d): own + the sum of pulls[j] times (rows[j] - own), each coordinate of which is clipped at `cut` times the value
 * at `rank` among the sorted absolute differences. */
#define CUT_PULLS(NAME, REAL, ABSOLUTE, MOST)                                                                          \
    CLONED int NAME(const REAL *own, const REAL *const *rows, const double *pulls, int n, const int32_t *steps,        \
                    long count, int rank, double cut, long from, long to, REAL *out) {                                             \
        MEMORY(REAL, wires, (size_t)n * COLUMNS);                                                                      \
        if (!wires) return 1;                                                                                          \
        memset(wires, 0, sizeof(REAL) * n * COLUMNS);                                                                  \
        REAL low[COLUMNS], high[COLUMNS], sum[COLUMNS];                                                                \
        int failed = 0;                                                                                                \
        for (long first = from; first < to; first += COLUMNS) {                                                            \
            long size = LESS(to - first, COLUMNS);                                                                      \
            const REAL *here = own + first;                                                                            \
            for (int j = 0; j < n; j++) {                                                                              \
                const REAL *row = rows[j] + first;                                                                     \
                REAL *way = wires + (size_t)j * COLUMNS;                                                               \
                AHEAD(row, COLUMNS);                                                                                   \
                for (long k = 0; k < size; k++) way[k] = ABSOLUTE(row[k] - here[k]);                                   \
            }                                                                                                          \
            SORT(REAL)                                                                                                 \
            for (long k = 0; k < size; k++) {                                                                          \
                REAL reach = (REAL)cut * wires[(size_t)rank * COLUMNS + k];                                            \
                low[k] = here[k] - reach;                                                                              \
                high[k] = here[k] + reach;                                                                             \
                sum[k] = 0;                                                                                            \
            }                                                                                                          \
            for (int j = 0; j < n; j++) {                                                                              \
                const REAL *row = rows[j] + first;                                                                     \
                REAL pull = (REAL)pulls[j];                                                                            \
                for (long k = 0; k < size; k++) {                                                                      \
                    REAL least = MORE(row[k], low[k]);                                                                 \
                    sum[k] += (LESS(least, high[k]) - here[k]) * pull;                                                 \
                }                                                                                                      \
            }                                                                                                          \
            for (long k = 0; k < size; k++) {                                                                          \
                out[first + k] = sum[k] + here[k];                                                                     \
                failed |= !FINITE(out[first + k], MOST);                                                               \
            }                                                                                                          \
        }                                                                                                              \
        free(wires);                                                                                                   \
        return failed;                                                                                                 \
    }
CUT_PULLS(cut_pulls_f32, float, fabsf, 3.40282346638528859812e+38f)
CUT_PULLS(cut_pulls_f64, double, fabs, 1.79769313486231570815e+308)
