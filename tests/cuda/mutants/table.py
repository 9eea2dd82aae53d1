"""The bugs that run.py plants: file, the text that stands there once, what takes its place, kind, the tests that see
it.

kind     barrier    a barrier is missing                     race    threads share what is one's own
         bounds     a guard is missing or off by one         index   another element, group, row or head
         reset      an accumulator is not reset or rescaled  value   a term, a zero or a rule is left out
compiled of a header: the .cu file that is compiled with it. A text that is found no longer is an error: whoever changes
a kernel changes its bugs. Bugs that change nothing (a barrier that another one makes needless) are not listed.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    kind: str
    tests: str
    text: str
    replacement: str
    compiled: str = ""

    def name(self):
        return (
            f"{self.file}, {self.kind}: {' '.join(self.text.split())[:70]} -> "
            f"{' '.join(self.replacement.split())[:50] or '(nothing)'}"
        )

    def unchanged(self):
        return dataclasses.replace(self, replacement=self.text)


def planted(file, tests, bugs, compiled=""):
    return [Mutant(file, kind, tests, text, replacement, compiled) for kind, text, replacement in bugs]


FORMS, INPUTS = "CudaLinears.EveryStoredForm*", "CudaInputs.EveryFormat:CudaLinears.NaN*"

MUTANTS = [
    *planted(
        "attention_kernels.cu",
        "CudaAttention.*",
        [
            ("barrier", "    __syncthreads();\n    if (queries.num > 0) add_tile", "    if (queries.num > 0) add_tile"),
            ("barrier", "shape, first, lane, running);\n    __syncthreads();\n", "shape, first, lane, running);\n"),
            ("barrier", "seen, keys_L);\n    __syncthreads();\n", "seen, keys_L);\n"),
            ("barrier", "warp_max(scores[n]));\n    __syncthreads();\n", "warp_max(scores[n]));\n"),
            ("barrier", "  __syncwarp();\n  add_values", "  add_values"),
            ("race", "values_L + kTileKeys * stride + warp * kQueries * kTileKeys", "values_L + kTileKeys * stride"),
            ("bounds", "queries.num += pair < end_pair ? 1 : 0;", "queries.num += pair <= end_pair ? 1 : 0;"),
            ("bounds", "pair < end_pair && k < size", "pair < end_pair"),
            ("bounds", "if (key >= seen.begin && key < seen.end) {", "if (key >= seen.begin) {"),
            ("index", "kv_head * heads.num_slots + sequence.first_slot", "kv_head + sequence.first_slot"),
            ("value", "__uint_as_float(words.x & 0xFFFF0000u)", "float_of_bfloat(words.x)"),
            (
                "bounds",
                "k + 3 < size ? in_K[k + 3] : 0.0f};\n  }\n  const KvGrid",
                "in_K[k + 3]};\n  }\n  const KvGrid",
            ),
            (
                "bounds",
                "value[v] = k < size ? values_L[t * stride + k] : 0.0f;",
                "value[v] = values_L[t * stride + k];",
            ),
            ("index", "place_of(first_pair + warp * kQueries + n) % shape.num_heads", "int64_t{0}"),
            ("index", "joined.with_sink(shape, blockIdx.x)", "joined.with_sink(shape, 0)"),
            ("bounds", "if (row >= sequence.num_rows) return;", "if (row > sequence.num_rows) return;"),
            (
                "bounds",
                "seen.end < (split + 1) * kStretchKeys ? seen.end : (split + 1) * kStretchKeys;",
                "seen.end < (split + 1) * kStretchKeys ? seen.end : (split + 1) * kStretchKeys - 1;",
            ),
            ("bounds", "? position - shape.sliding_window + 1 : 0", "? position - shape.sliding_window : 0"),
            (
                "bounds",
                "if (shape.causal) return {begin, position + 1};",
                "if (shape.causal) return {begin, position + 2};",
            ),
            (
                "bounds",
                "ends_before ? position + shape.sliding_window :",
                "ends_before ? position + shape.sliding_window + 1 :",
            ),
            ("value", "n < -reach ? -reach : n > reach ? reach : n", "n < -reach ? -reach : n > reach ? 0 : n"),
            (
                "index",
                "kv_head = part / num_splits, split = part % num_splits;",
                "kv_head = part % shape.num_kv_heads, split = part / shape.num_kv_heads % 1;",
            ),
            ("index", "blockIdx.x % num_tiles) * kWarps", "blockIdx.x % 1) * kWarps"),
            (
                "index",
                "kv_head * heads_per_kv + pair % heads_per_kv;",
                "kv_head * heads_per_kv + pair / heads_per_kv % heads_per_kv;",
            ),
            ("reset", "own.weighted[v] *= factor;", "own.weighted[v] *= 1.0f;"),
            ("reset", "own.sum = own.sum * factor + warp_sum(weight);", "own.sum = own.sum + warp_sum(weight);"),
            ("reset", "{largest == next ? 1.0f : expf(largest - next),", "{1.0f,"),
            ("reset", "own_largest == next ? 1.0f : expf(own_largest - next)};", "1.0f};"),
            ("reset", "      running[n] = {lowest(), 0.0f, {}};\n    }\n  };", "    }\n  };"),
            ("value", "is_first ? 0.0f : x_K[k]", "0.0f"),
            ("value", "if (next % kStretchKeys == 0 && next < seen.end", "if (next < seen.end"),
            (
                "value",
                "return (static_cast<float>(code) - grid.zero) * grid.scale;",
                "return static_cast<float>(code) * grid.scale;",
            ),
            (
                "value",
                "is_whole = is_whole && first_key >= queries.seen[n].begin && first_key + kTileKeys <= "
                "queries.seen[n].end;",
                "is_whole = is_whole && first_key >= queries.seen[n].begin;",
            ),
            ("value", "if (shape.softcap > 0.0f) score", "if (shape.softcap > 2.0f) score"),
            (
                "value",
                "if (shape.products_in_8_bits && is_seen) weight =",
                "if (shape.products_in_8_bits && !is_seen) weight =",
            ),
        ],
    ),
    *planted(
        "linear_kernels.cu",
        FORMS,
        [
            (
                "barrier",
                "num_vectors * kColumns, x_tile);\n    __syncthreads();\n",
                "num_vectors * kColumns, x_tile);\n",
            ),
            ("barrier", "sums[o]);\n    });\n    __syncthreads();\n", "sums[o]);\n    });\n"),
            ("bounds", "row < rows.num && column < num_in", "row < rows.num && column <= num_in"),
            ("bounds", "row < rows.num && column < num_in", "row <= rows.num && column < num_in"),
            ("bounds", "column + 3 < num_in ? x_I[3] : 0.0f", "x_I[3]"),
            ("bounds", "if (vector >= num_vectors ||", "if (vector > num_vectors ||"),
            (
                "bounds",
                "|| first + own + o >= weight.num_out) continue;",
                "|| first + own + o > weight.num_out) continue;",
            ),
            (
                "bounds",
                "if (out >= weight.num_out || row >= rows.num) return;",
                "if (out > weight.num_out || row >= rows.num) return;",
            ),
            ("index", "quad > 0 && !is_one_group) grid", "quad > 1 && !is_one_group) grid"),
            (
                "index",
                "const GroupGrid own = group_grid(weight, out, column + place);",
                "const GroupGrid own = group_grid(weight, out, column);",
            ),
            ("index", "at(x, place >> 2)", "at(x, place >> 1 & 3u)"),
            ("index", "places[quad / 2] >> quad % 2 * 4", "places[quad / 2] >> quad % 1 * 4"),
            ("index", "first_vector += kSpans * kStep", "first_vector += kStep"),
            ("index", "vector = first_vector + s * kStep", "vector = first_vector"),
            ("index", "weight.first_out + out] = sum + bias;", "out] = sum + bias;"),
            ("reset", "        partial[r] = 0.0f;\n", ""),
            (
                "value",
                "units[i] = unit_of<kStored>(weight, codes[i], grid.zero);",
                "units[i] = unit_of<kStored>(weight, codes[i], 0);",
            ),
            ("value", "first_out + out] = sum + bias;", "first_out + out] = sum;"),
        ],
    ),
    *planted(
        "linear_kernels.cu",
        "CudaLinears.Embed*",
        [
            ("index", "row = blockIdx.x, id = ids_R[row];", "row = blockIdx.x, id = ids_R[0];"),
            ("value", "weight_at(weight, id, i) * scale", "weight_at(weight, id, i)"),
        ],
    ),
    *planted(
        "linear_kernels.cu",
        "CudaColumns.*",
        [
            ("barrier", "  }\n  __syncthreads();\n  for (int place =", "  }\n  for (int place ="),
            ("bounds", "if (word >= weight.column_words) continue;", ""),
            ("bounds", "begin + split_length < weight.num_in ? begin + split_length : weight.num_in;",
             "begin + split_length;"),
            ("bounds", "known = out < weight.num_out ? out : weight.num_out - 1;", "known = out;"),
            ("bounds", "if (out >= weight.num_out || row >= rows.num) continue;", "if (row >= rows.num) continue;"),
            ("bounds", "if (out >= weight.num_out || row >= rows.num) continue;",
             "if (out >= weight.num_out) continue;"),
            ("index", "tile = blockIdx.x / num_blocks;", "tile = blockIdx.x % num_blocks;"),
            ("index", "i < kPerWord && own_group != group; ++i", "i < kPerWord && group < 0; ++i"),
            ("index", "weight.zeros_OG[own_group * weight.num_out + known]", "weight.zeros_OG[known]"),
            ("value", "counts = counts || x_R[r] != 0.0f;", "counts = counts || x_R[r] > 0.0f;"),
            ("value", "value *= scales[i];", "value *= scales[0];"),
            ("value", "w < kColumnWarps; ++w) sum", "w < kColumnWarps - 1; ++w) sum"),
            ("value", "(weight.bias_O != nullptr ? weight.bias_O[out] : 0.0f)", "0.0f"),
            ("value", "if (max_rows > kRows) return;  // prefill", ""),
            ("race", "blockIdx.x % num_blocks != 0 || tile >= kCountedTiles", "tile >= kCountedTiles"),
        ],
    ),
    *planted(
        "rounding_kernels.cu",
        "CudaExperts.Drop*",
        [("value", "  if (kinds.has_thresholds) {", "  if (false) {")],
    ),
    *planted(
        "linear_tiles.cuh",
        FORMS,
        [
            (
                "barrier",
                "  __syncthreads();\n  for (int i = static_cast<int>(threadIdx.x); i < kSums;",
                "  for (int i = static_cast<int>(threadIdx.x); i < kSums;",
            ),
            ("value", "for (int s = 1; s < kSplits; ++s) sum +=", "for (int s = 1; s < kSplits - 1; ++s) sum +="),
            ("bounds", "const int64_t num = end - first;", "const int64_t num = end - first + 1;"),
        ],
        "linear_kernels.cu",
    ),
    *planted(
        "linear_tiles.cuh",
        "CudaExperts.*",
        [
            ("index", "return slots.rows_S != nullptr ? slots.rows_S[slot] : slot;", "return slot;"),
            (
                "index",
                "return slots.linears_Z != nullptr ? slots.linears_Z[blockIdx.y] : static_cast<int64_t>(blockIdx.y);",
                "return blockIdx.y;",
            ),
        ],
        "linear_kernels.cu",
    ),
    *planted(
        "stored_weights.cuh",
        FORMS,
        [
            ("bounds", "known = column < last ? column : last;", "known = column;"),
            ("index", "out * weight.num_groups + group;", "out + group;"),
            ("index", "return weight.values[code];", "return weight.values[code & 7u];"),
            ("value", "return weight.values[code];", "return weight.values[0] + static_cast<float>(code);"),
            (
                "value",
                "if (exponent == 0) {\n    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;\n"
                "    return",
                "if (exponent == 0) {\n    const float magnitude = 0.0f;\n    return",
            ),
        ],
        "linear_kernels.cu",
    ),
    *planted(
        "stored_weights.cuh",
        "CudaLinears.Embed*",
        [
            ("index", ">> column / 4 % 2 * 4 & 0xFu;", "& 0xFu;"),
            ("index", "column / 4 * 2 + (wanted == (quad & 3u) ? 0 : 1);", "column / 4 * 2;"),
        ],
        "linear_kernels.cu",
    ),
    *planted(
        "cuda_backend.cu",
        "CudaSteps.*",
        [
            ("reset", "known == nullptr || known->num_allocations != num_allocations_", "known == nullptr"),
            ("value", "if (is_steady) recorded", "recorded"),
            ("value", "if (known->graph == nullptr) known->graph", "known->graph"),
        ],
    ),
    *planted(
        "code_linear_kernels.cu",
        INPUTS,
        [
            (
                "barrier",
                "columns_of_vector(kStored, kIsKept), x_tile);\n    __syncthreads();\n",
                "columns_of_vector(kStored, kIsKept), x_tile);\n",
            ),
            ("bounds", "row < rows.num && column < x.stride", "row < rows.num"),
            ("bounds", "if (vector >= num_vectors ||", "if (vector > num_vectors ||"),
            ("index", "x.zeros_R[row_of_slot(slots, rows.first_slot + r)]", "x.zeros_R[row_of_slot(slots, r)]"),
            ("index", "x.scales_R[row_of_slot(slots, slot)]", "x.scales_R[row_of_slot(slots, row)]"),
            ("index", "if (quad > 0 && !is_one_group) grid =", "if (quad > 1 && !is_one_group) grid ="),
            ("index", "(places >> 4 & 3u) | 4u", "(places >> 4 & 3u)"),
            ("reset", "      group[r] = {};\n", ""),
            ("reset", "if (ends_group) weight_sum = num_weights = 0;", "if (ends_group) num_weights = 0;"),
            ("reset", "if (ends_group) weight_sum = num_weights = 0;", "if (ends_group) weight_sum = 0;"),
            ("value", "- static_cast<uint32_t>(zero) * kOnes) ^", ") ^"),
            ("value", "- x_zeros[r] * (weight_sum - num_weights * offset)", ""),
            ("value", "- offset * group[r].x", ""),
            ("value", "return words[quad] ^ 0x80808080u;", "return words[quad];"),
        ],
    ),
    *planted(
        "code_linear_kernels.cu",
        "CudaLinears.*:CudaInputs.*",
        [
            ("barrier", "sums[o]);\n    }\n    __syncthreads();\n", "sums[o]);\n    }\n"),
            ("index", "first_vector += kSplits * kWarp", "first_vector += kWarp"),
        ],
    ),
    *planted(
        "rope_kernels.cu",
        "CudaAttention.RopeStore*:CudaAttention.EightBits*:CudaAttention.Bf16*",
        [
            ("bounds", "if (head >= num_all) return;", "if (head > num_all) return;"),
            ("bounds", "head.high[n] = j < half ? in_K[half + j] : 0.0f;", "head.high[n] = in_K[half + j];"),
            ("bounds", "if (j >= half) continue;\n    out_K[j]", "if (j > half) continue;\n    out_K[j]"),
            (
                "index",
                "(head - shape.num_heads) % shape.num_kv_heads;",
                "(head - shape.num_heads) / 2 % shape.num_kv_heads;",
            ),
            ("index", "kv_head * cache.num_slots + slots_R[row]", "kv_head * cache.num_slots + row"),
            ("value", "bits + 0x7FFFu + (bits >> 16 & 1u)", "bits"),
            ("index", "rope.sine + position * half", "rope.sine + row * half"),
            ("value", "*place = {grid.scale, grid.zero};", "*place = {grid.scale, 0.0f};"),
            ("value", "if (!is_value && norm.gain_D != nullptr) normalize", "if (norm.gain_D != nullptr) normalize"),
            ("value", "head.high[n] = b * c + a * s;", "head.high[n] = b * c - a * s;"),
            ("value", "head.high[n] *= factor * norm.gain_D[half + j];", "head.high[n] *= factor * norm.gain_D[j];"),
        ],
    ),
    *planted(
        "warp_block.cuh",
        "CudaRows.AddNorm*",
        [
            ("barrier", "scratch_W[warp] = value;\n  __syncthreads();\n", "scratch_W[warp] = value;\n"),
            ("barrier", "sum += scratch_W[w];\n  __syncthreads();\n", "sum += scratch_W[w];\n"),
            ("bounds", "w < num_warps; ++w) sum += scratch_W[w];", "w < num_warps - 1; ++w) sum += scratch_W[w];"),
            ("race", "if (lane == 0) scratch_W[warp] = value;", "scratch_W[warp] = value;"),
        ],
        "row_kernels.cu",
    ),
    *planted(
        "row_kernels.cu",
        "CudaRows.*",
        [
            (
                "bounds",
                "    const Quad quad = load_quad(row_D, i, width);",
                "    const Quad quad = load_quad(row_D, i, width + 1);",
            ),
            ("value", "static_cast<float>(width) + epsilon);\n}", "static_cast<float>(width));\n}"),
            (
                "index",
                "factor, load_quad(norm.gain_D, i, width)); });",
                "factor, load_quad(norm.gain_D, 0, width)); });",
            ),
            (
                "value",
                "hidden.at[n] += delta.at[n];\n      store_quad",
                "hidden.at[n] = delta.at[n];\n      store_quad",
            ),
            ("value", "* factor * gain.at[n] + bias.at[n];", "* factor * gain.at[n];"),
            ("value", "hidden.at[n] - mean : 0.0f;", "hidden.at[n] : 0.0f;"),
            ("bounds", "i + n < width ? hidden.at[n] - mean : 0.0f;", "hidden.at[n] - mean;"),
            ("index", "load_quad(gate_F + width_F, f, width_F) :", "load_quad(gate_F, f, width_F) :"),
            ("value", "return 0.5f * g * (1.0f + erff(g * kSqrtHalf));", "return 0.5f * g * (1.0f + erff(g));"),
            (
                "index",
                "return load_quad(x_RD + row * width, i, width); });",
                "return load_quad(x_RD + slot * width, i, width); });",
            ),
            ("bounds", "up < -kSwigluLimit ? -kSwigluLimit : up;", "up;"),
            ("bounds", "k < (row + 1) * num_chosen; ++k", "k < (row + 1) * num_chosen - 1; ++k"),
            ("reset", "Quad sum = {};\n    for (int64_t k", "static Quad sum = {};\n    for (int64_t k"),
            (
                "index",
                "load_quad(hidden_RD + (sequence.first_row + r) * width, i, width);",
                "load_quad(hidden_RD + r * width, i, width);",
            ),
        ],
    ),
    *planted(
        "quads.cuh",
        "CudaRows.*",
        [
            ("bounds", "i + kQuad <= width && reinterpret_cast", "reinterpret_cast"),
            ("bounds", "reinterpret_cast<uintptr_t>(row_I + i) % sizeof(Quad) == 0;", "true;"),
            ("bounds", "    if (i + n < width) row_I[i + n] = quad.at[n];", "    row_I[i + n] = quad.at[n];"),
            ("bounds", "    if (i + n < width) quad.at[n] = row_I[i + n];", "    quad.at[n] = row_I[i + n];"),
            ("index", "blockDim.x) * kQuad;", "blockDim.x);"),
            ("value", "  Quad quad = {};", "  Quad quad = {{1.0f, 1.0f, 1.0f, 1.0f}};"),
        ],
        "row_kernels.cu",
    ),
    *planted(
        "rounding.cuh",
        "CudaRows.EveryOperation*:" + INPUTS,
        [
            ("barrier", "is_nan ? 1.0f : 0.0f;\n    }\n    __syncthreads();\n", "is_nan ? 1.0f : 0.0f;\n    }\n"),
            ("bounds", "return i + n < width ? static_cast<int8_t>", "return true ? static_cast<int8_t>"),
            ("bounds", "w < num_warps; ++w) {\n      low =", "w < num_warps - 1; ++w) {\n      low ="),
            ("value", "if (is_fixed && extremes.is_nan) grid =", "if (!is_fixed && extremes.is_nan) grid ="),
            ("value", ": 127.5f);", ": 127.0f);"),
            ("value", "rows.zeros_R[row] = static_cast<int32_t>(grid.zero);", "rows.zeros_R[row] = 0;"),
            ("value", "if (grid.scale == 0.0f) grid.scale = kLeastScale;", ""),
            (
                "value",
                "const float scaled = x / grid.scale + grid.zero;\n  return rintf(fminf(fmaxf(scaled, -128.0f)",
                "const float scaled = x / grid.scale + grid.zero;\n  return rintf(fminf(fmaxf(scaled, -127.0f)",
            ),
            ("value", "(bits + 0x7FFFFu + (bits >> 20 & 1u))", "(bits + 0x80000u)"),
            ("value", "(bits + 0x1FFFFFu + (bits >> 22 & 1u))", "(bits + 0x200000u)"),
            ("value", "bounded < 1.0f ? small", "bounded < 0.5f ? small"),
            ("value", "(scale == 0.0f ? 0.125f : scale) / factor", "scale / factor"),
            ("bounds", "distance < kQuadsOfBlock;", "distance < kQuadsOfBlock / 2;"),
            ("bounds", "distance < kQuadsOfBlock;", "distance < 2 * kQuadsOfBlock;"),
        ],
        "row_kernels.cu",
    ),
    *planted(
        "rounding_kernels.cu",
        "CudaRows.EveryOperation*:CudaRows.Infinity*:" + INPUTS,
        [
            ("barrier", "sums[threadIdx.x] = sum;\n  __syncthreads();\n", "sums[threadIdx.x] = sum;\n"),
            (
                "bounds",
                "return blockIdx.x < own.num_rows ? own.first_row",
                "return blockIdx.x <= own.num_rows ? own.first_row",
            ),
            ("bounds", "num_values = sequence.num_rows * width;", "num_values = width;"),
            (
                "bounds",
                "r < sequence.num_rows; ++r) {\n    write_on_grid",
                "r < sequence.num_rows - 1; ++r) {\n    write_on_grid",
            ),
            ("index", "scratch.squares_R[sequence.first_row + r];", "scratch.squares_R[r];"),
            ("index", "scratch.columns_NI + sequence * width", "scratch.columns_NI"),
            ("race", "scratch.columns_NI + static_cast<int64_t>(blockIdx.x) * width;", "scratch.columns_NI;"),
            ("bounds", "if (i + n < width) columns_I[i + n] = is_outlier[n]", "columns_I[i + n] = is_outlier[n]"),
            ("value", "fabsf(quad.at[n]) >= limit;", "fabsf(quad.at[n]) > limit;"),
            ("value", "has_limit ? fabsf(x) < limit : !in_column;", "has_limit ? fabsf(x) <= limit : !in_column;"),
            ("value", "has_limit ? fabsf(x) < limit : !in_column;", "has_limit ? fabsf(x) < limit : true;"),
            ("value", "if (columns_I[i + n] == 0) quad.at[n] =", "quad.at[n] ="),
            ("value", "is_nan || x != x || (is_infinite && !in_column);", "is_nan || x != x;"),
        ],
    ),
    *planted(
        "rounding_kernels.cu",
        "CudaExperts.*",
        [
            ("index", "rows.targets_E[sequence / rows.sequences_per_target]", "rows.targets_E[0]"),
            (
                "index",
                "rows.targets_E[sequence / rows.sequences_per_target]",
                "rows.targets_E[sequence % rows.sequences_per_target]",
            ),
        ],
    ),
    *planted(
        "rounding_kernels.cu",
        "CudaGrids.*",
        [
            ("index", "static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;", "blockIdx.y;"),
            ("bounds", "if (sequence() >= num_sequences) return -1;", ""),
        ],
    ),
    *planted(
        "mixture_kernels.cu",
        "CudaRows.Routing*",
        [
            ("bounds", "if (row >= num_rows) return;", "if (row > num_rows) return;"),
            ("value", "!(score > best_score)", "!(score >= best_score)"),
            ("value", "is_taken = is_taken || experts_K[before] == e;", "is_taken = is_taken || experts_K[0] == e;"),
            ("value", "experts_K[place - 1] > expert; --place", "experts_K[place - 1] > expert && place > 1; --place"),
            ("value", "if (!routing.normalizes_top_weights) divisor = 1.0f;", ""),
        ],
    ),
    *planted(
        "mixture_kernels.cu",
        "CudaRows.Corrected*",
        [
            ("value", "score(e) + correction_E[e]", "score(e) - correction_E[e]"),
            ("value", "(groups >> (e / group_size) & 1) == 0", "false"),
            ("value", "divisor * routing.weight_factor", "divisor"),
            ("value", "expf(-logits_L[num_routed])", "expf(-logits_L[0])"),
        ],
    ),
    *planted(
        "mixture_kernels.cu",
        "CudaExperts.*",
        [
            ("barrier", "first_slot_E1[0] = 0;\n  __syncthreads();\n", "first_slot_E1[0] = 0;\n"),
            (
                "barrier",
                "first_slot_E1[e + 1] += first_slot_E1[e];\n  }\n  __syncthreads();\n",
                "first_slot_E1[e + 1] += first_slot_E1[e];\n  }\n",
            ),
            ("index", "static_cast<int32_t>(p / num_chosen);", "static_cast<int32_t>(p % num_chosen);"),
            (
                "bounds",
                "e < num_experts; ++e) first_slot_E1[e + 1] +=",
                "e < num_experts - 1; ++e) first_slot_E1[e + 1] +=",
            ),
            ("bounds", "if (n >= num_sequences) return;", "if (n > num_sequences) return;"),
            ("index", "if (rows_S[middle] < row) {", "if (rows_S[middle] <= row) {"),
            (
                "index",
                "first_slot_E1[expert], end = first_slot_E1[expert + 1];",
                "first_slot_E1[0], end = first_slot_E1[expert + 1];",
            ),
        ],
    ),
    *planted(
        "logits_kernels.cu",
        "CudaRows.Logits*",
        [
            (
                "barrier",
                "indices_W[warp] = best.index;\n  }\n  __syncthreads();\n",
                "indices_W[warp] = best.index;\n  }\n",
            ),
            ("barrier", "take(values_W[w], indices_W[w]);\n  __syncthreads();\n", "take(values_W[w], indices_W[w]);\n"),
            ("bounds", "n < kQuad && v + n < num_vocabulary; ++n) visit(", "n < kQuad; ++n) visit("),
            ("bounds", "n < kQuad && v + n < num_vocabulary; ++n) {", "n < kQuad; ++n) {"),
            ("bounds", "w < num_warps; ++w) take(", "w < num_warps - 1; ++w) take("),
            ("value", "(value == best.value && is_lower)", "(value == best.value && !is_lower)"),
            (
                "value",
                "static_cast<double>(capped(logits_V[targets_R[row]], softcap));",
                "static_cast<double>(logits_V[targets_R[row]]);",
            ),
            ("index", "shifted_q(quad_q.at[n]) - log_q;", "shifted_q(quad_q.at[n]) - log_p;"),
            (
                "value",
                "same_top1_R[row] = largest_p.index == largest_q.index ? 1 : 0;",
                "same_top1_R[row] = largest_p.index == targets_R[row] ? 1 : 0;",
            ),
        ],
    ),
    *planted(
        "cuda_roof.cu",
        "CudaRoof.*",
        [
            (
                "race",
                "sums[static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x] = sum;",
                "sums[threadIdx.x] = sum;",
            ),
            ("bounds", "v < num_vectors; v += stride", "v <= num_vectors; v += stride"),
        ],
    ),
]
