package dump

import (
	"maps"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// extent is the shape that a tensor of a file has: B rows and T columns of the grid, N sequences (B unless rows are
// packed).
type extent uint8

const (
	perToken    extent = iota // [B, T]
	perRow                    // [N] or [N, 1]
	tokenOrRow                // either
	rowVector                 // [N, F]
	idGrid                    // [B, S]
	tokenVector               // [B, T, V], or of the rows logits_rows
	scalar                    // [] or [1]
	anyShape
)

// content is what the elements of a tensor may be.
type content uint8

const (
	number  content = iota // floating-point; NaN and infinities are data
	integer                // of any type, at most 2⁵³ in magnitude
	natural                // an integer that is not negative
	flag                   // 0 or 1, of any type
)

// definition is what dump.md says of a tensor.
type definition struct {
	extent
	content
	of grid
}

// grid is what the rows of a dump are.
type grid uint8

const (
	ofTokens  grid = iota // sequences of tokens: every algorithm that is not named below
	ofPairs               // pairs of answers: direct preference optimisation (dpo)
	ofAnswers             // answers with a label: kto, bco
)

// gridOf returns what the rows of a dump of the algorithm are.
func gridOf(algorithm string) grid {
	switch algorithm {
	case "dpo":
		return ofPairs
	case "kto", "bco":
		return ofAnswers
	}
	return ofTokens
}

// labelled reports whether the mask of the algorithm is labels_mask.
func labelled(algorithm string) bool { return algorithm == "sft" || algorithm == "gkd" }

// isLogits reports whether the tensor called name has a vocabulary's numbers per token.
func isLogits(name string) bool { return name == logits || name == teacherLogits }

// definitions are the tensors that a batch can hold. The mask and what takes packed rows apart are read before them.
var definitions = map[string]definition{
	"input_ids": {idGrid, integer, ofTokens}, "attention_mask": {idGrid, flag, ofTokens},
	"response_ids": {perToken, integer, ofTokens}, "prompt_len": {perRow, natural, ofTokens},
	"logp_new": {}, "logp_old": {}, "logp_gen": {}, "logp_ref": {}, "values": {}, "values_new": {},
	"token_rewards": {}, "kl": {}, "returns": {}, "entropy": {}, "token_loss": {}, "dlogp": {}, "dvalues": {},
	"dones":  {perToken, flag, ofTokens},
	"scores": {perRow, number, ofTokens}, "rewards_per_func": {rowVector, number, ofTokens}, "group_id": {perRow, integer, ofTokens},
	"sample_id": {perRow, integer, ofTokens}, "next_values": {perRow, number, ofTokens},
	"reward_baselines": {perRow, number, ofTokens}, "sum_pi_squared": {},
	"advantages": {tokenOrRow, number, ofTokens}, "is_weights": {tokenOrRow, number, ofTokens},
	"loss": {scalar, number, ofTokens}, "pg_loss": {scalar, number, ofTokens}, "kl_loss": {scalar, number, ofTokens},
	"value_loss": {scalar, number, ofTokens}, "entropy_loss": {scalar, number, ofTokens},
	"logits":      {tokenVector, number, ofTokens},
	"logp_chosen": {perRow, number, ofPairs}, "logp_rejected": {perRow, number, ofPairs},
	"ref_chosen": {perRow, number, ofPairs}, "ref_rejected": {perRow, number, ofPairs},
	"nll_loss": {scalar, number, ofPairs}, "chosen_tokens": {perRow, natural, ofPairs}, "rejected_tokens": {perRow, natural, ofPairs},
	"pair_weights": {perRow, number, ofPairs},
	"pair_loss":    {perRow, number, ofPairs}, "dlogp_chosen": {perRow, number, ofPairs}, "dlogp_rejected": {perRow, number, ofPairs},
	"chosen_token_logps": {idGrid, number, ofPairs}, "rejected_token_logps": {idGrid, number, ofPairs},
	"ref_chosen_token_logps": {idGrid, number, ofPairs}, "ref_rejected_token_logps": {idGrid, number, ofPairs},
	"chosen_mask": {idGrid, flag, ofPairs}, "rejected_mask": {idGrid, flag, ofPairs},
	"logp_policy": {perRow, number, ofAnswers}, "logp_reference": {perRow, number, ofAnswers}, "desirable": {perRow, flag, ofAnswers},
	"reference_point": {scalar, number, ofAnswers},
	"teacher_logits":  {tokenVector, number, ofTokens},
	"grad":            {anyShape, number, ofTokens}, "update": {anyShape, number, ofTokens},
	"weights": {anyShape, number, ofTokens}, "weights_init": {anyShape, number, ofTokens},
}

// Tensors with a part of their own in reading a file.
const (
	responseMask = "response_mask"
	labelsMask   = "labels_mask"
	segmentIDs   = "segment_ids"
	cuSeqlens    = "cu_seqlens"
	inputIDs     = "input_ids"
	logits       = "logits"

	teacherLogits = "teacher_logits"
)

// TensorNames returns the names of the tensors that are read, sorted, and those of masks and packed rows.
func TensorNames() []string {
	return append(slices.Sorted(maps.Keys(definitions)), responseMask, labelsMask, segmentIDs, cuSeqlens)
}

// define returns the definition of the tensor called name, or false for one that dump.md does not have.
func define(name string) (definition, bool) {
	prefix, _, below := strings.Cut(name, "/")
	d, ok := definitions[prefix]
	return d, ok && (!below || d.extent == anyShape)
}

// check demands that data, the elements of a, are what c says.
func (c content) check(data []float64, a *format.Array) error {
	switch c {
	case integer, natural:
		for i, v := range data {
			if v != math.Trunc(v) { // NaN is not equal to itself
				return format.Malformed(a.Name, format.Place(i, a.Shape), "found %v, want an integer", v)
			}
			if math.Abs(v) > maxPosition {
				return format.Malformed(a.Name, format.Place(i, a.Shape), "found %.0f, want an integer of at most 2⁵³ in magnitude: larger ones cannot be told apart", v)
			}
			if c == natural && v < 0 {
				return format.Malformed(a.Name, format.Place(i, a.Shape), "found %.0f, want at least 0", v)
			}
		}
	case flag:
		for i, v := range data {
			if v != 0 && v != 1 {
				return format.Malformed(a.Name, format.Place(i, a.Shape), "found %v, want 0 or 1", v)
			}
		}
	}
	return nil
}

// checkType demands an element type that c can have.
func (c content) checkType(a *format.Array) error {
	switch {
	case a.DType == format.Unknown:
		return format.Malformed(a.Name, "", "unsupported element type %s", a.Type)
	case c == number && !a.DType.Float():
		hint := ""
		if a.DType == format.U16 {
			hint = ` ("bf16" in the metadata names tensors that are uint16 views of bfloat16)`
		}
		return format.Malformed(a.Name, "", "element type %s, want float64, float32, bfloat16 or float16%s", a.Type, hint)
	}
	return nil
}
