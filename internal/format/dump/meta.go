package dump

// Meta is the metadata of a file, or what the files of a step have in common.
type Meta struct {
	Framework, Version string // "trl", "1.16.0"
	Algorithm          string // "grpo", "ppo", "sft", "gkd", "dpo", "kto", …
	Profile            string // the convention that the writer believes it follows; "" if it does not say
	Run                string // one for all files of a run and for no other; "" if it does not say

	Step, Rank, WorldSize, MicroBatch, MicroBatches int // WorldSize and MicroBatches are 0 where the file does not say

	Align   Align
	Options []Option // under neutral or the framework's own names, in the order of the file
	Scalars []Scalar // logged numbers, in the order of the file

	ScalarsScope        string // "optimizer_step", "micro_batch", or "" if not said
	TokenLossIncludesKL *bool  // nil: not said
	ComputeDType        string // "float32", "bfloat16", …, or "" if not said
	Lossy               []string
	DLogpScale          float64  // 1 where the file does not say
	MaskedFill          *float64 // the value outside the mask; nil: not said
	ScoresShaped        *bool    // scores stand after penalties and clips; nil: not said

	Counts []Count // of the files of a step that do not agree on a count, which then is no option of the step
}

// Count is a number of the batch that a program has counted, as one file says it, such as num_items_in_batch.
type Count struct {
	Name             string
	Rank, MicroBatch int
	N                float64
}

// Align is how the columns of per-token tensors belong to tokens.
type Align uint8

const (
	AlignResponse  Align = iota // column t is response token t
	AlignShifted                // [B, S−1], column s is token s+1 of input_ids
	AlignUnshifted              // [B, S], column s is token s, column 0 a dummy
)

func (a Align) String() string { return [...]string{"response", "shifted", "unshifted"}[a] }

// Option is an option as the file has it: Value is nil, a bool, a float64, a string, a []any or a map[string]any of these.
type Option struct {
	Name  string
	Value any
}

// Scalar is a logged number; null is NaN.
type Scalar struct {
	Name  string
	Value float64
}
