package rl

import "cmp"

// AggKind is how a matrix of token losses becomes one number. It is the option agg.kind.
type AggKind int

const (
	AggToken            AggKind = iota // Σℓm / tokens: verl token-mean, OpenRLHF, TRL bnpo and dapo, NeMo-RL token
	AggSeqMeanTokenMean                // mean over rows of row means: verl, OpenRLHF, TRL grpo, NeMo-RL seq
	AggSeqMeanTokenSum                 // mean over rows of row sums: verl; TRL 1.16 luspo
	AggSeqSumConst                     // Σℓm / Length: verl seq-mean-token-sum-norm, TRL dr_grpo, Dr.GRPO
	AggLUSPO                           // mean over all cells, masked ones included, of ℓ·(tokens of the row): Liger, TRL 1.9
	AggTokenSum                        // Σℓm: verl token-sum
)

var aggKinds = enumeration[AggKind]("agg.kind", "token", "seq_mean_token_mean", "seq_mean_token_sum", "seq_sum_const", "luspo", "token_sum")

func (k AggKind) String() string { return aggKinds.text(k) }

// ParseAggKind reads a value of agg.kind.
func ParseAggKind(s string) (AggKind, error) { return aggKinds.parse(s) }

// AggDenominator is where the counts of tokens and rows come from. It is the option agg.denominator.
type AggDenominator int

const (
	AggMicro    AggDenominator = iota // counted in the mask at hand
	AggRank                           // AggOptions.Tokens and Rows, counted over the rank's batch
	AggGlobal                         // the same over all ranks: TRL dapo, NeMo-RL, verl's engine path
	AggConstant                       // the same, a constant: open-instruct
)

var aggDenominators = enumeration[AggDenominator]("agg.denominator", "micro", "rank", "global", "constant")

func (d AggDenominator) String() string { return aggDenominators.text(d) }

// ParseAggDenominator reads a value of agg.denominator.
func ParseAggDenominator(s string) (AggDenominator, error) { return aggDenominators.parse(s) }

// AggEmptyRows tells whether a row without a true cell counts as a row. It is the option agg.empty_rows.
type AggEmptyRows int

const (
	AggExcluded AggEmptyRows = iota // verl, OpenRLHF
	AggCounted                      // TRL, NeMo-RL
)

var aggEmptyRows = enumeration[AggEmptyRows]("agg.empty_rows", "excluded", "counted")

func (e AggEmptyRows) String() string { return aggEmptyRows.text(e) }

// ParseAggEmptyRows reads a value of agg.empty_rows.
func ParseAggEmptyRows(s string) (AggEmptyRows, error) { return aggEmptyRows.parse(s) }

// AggOptions selects an aggregation. The zero value is Σℓm/Σm over the mask, NaN if it is empty.
type AggOptions struct {
	Kind        AggKind        // agg.kind
	Denominator AggDenominator // agg.denominator
	EmptyRows   AggEmptyRows   // agg.empty_rows; read where the rows are counted in the mask

	Tokens float64 // the number of tokens; read unless Denominator is micro
	Rows   float64 // the number of rows; read unless Denominator is micro

	DivBatch bool    // seq_sum_const also divides by the number of rows (agg.div_batch): verl since #5366, TRL dr_grpo
	Length   float64 // seq_sum_const's constant, in tokens; 0 means the number of columns (verl)
	LenEps   float64 // added to the length of a row by seq_mean_token_mean (agg.len_eps): verl 1e-8
	Eps      float64 // added to the number of tokens or rows divided by: NeMo-RL 1e-8
	Steps    float64 // divides the result: gradient accumulation steps (agg.div_ga); 0 means 1
	Scale    float64 // multiplies the result: the dp_size of verl and OpenRLHF; 0 means 1

	Empty   EmptyRule   // mean.empty: the result where the number divided by is 0
	Outside OutsideRule // mean.nan_outside: what a masked cell may hold
}

// Aggregate returns the aggregate L of the token losses and stores in weight, rows×cols, its derivative ∂L/∂loss. A nil
// mask takes every cell, a nil weight is allocated.
//
//	token                L = Σℓm / N          N the number of tokens
//	token_sum            L = Σℓm
//	seq_mean_token_mean  L = 1/B·Σ_i (Σ_t ℓm)/(n_i + LenEps)      B the number of rows, n_i the tokens of row i
//	seq_mean_token_sum   L = 1/B·Σ_i Σ_t ℓm
//	seq_sum_const        L = Σℓm / Length, with DivBatch / (B·Length)
//	luspo                L = Σ_i n_i·Σ_t ℓ / (rows·cols)
//
// each times Scale/Steps. A row without tokens adds 0. The weight of a masked cell is 0, except by luspo. With Outside
// propagate, masked losses are multiplied by 0, so that NaN or ±Inf there makes L NaN; ignore never reads them. luspo reads
// all cells.
//
// Errors: ErrEmptyMask where the number divided by is 0 and Empty is error; with nan, L and the weights of true cells are NaN.
//
// Source: verl 0.9.1 agg_loss, OpenRLHF 0.11.2 aggregate_loss, TRL 1.16.0 GRPOTrainer, pinned by the golden section
// policy_loss; NeMo-RL 7ea279ab by the block loss.agg_mask.
func Aggregate(weight, loss []float64, mask []bool, rows, cols int, o AggOptions) (L float64, w []float64, err error) {
	checkGrid(rows, cols, mask, loss)
	need(aggKinds.has(o.Kind), badOption)
	weight = output(weight, rows*cols)

	factor := 1.0 // Scale/Steps
	if o.Scale != 0 {
		factor = o.Scale
	}
	if o.Steps != 0 {
		factor /= o.Steps
	}
	den, err := o.divisor(mask, rows, cols)
	if err != nil {
		return 0, weight, err
	}
	if den == 0 && o.Empty == EmptyZero {
		den, factor = 1, 0
	}

	var total float64
	for r := range rows {
		lo, hi := r*cols, (r+1)*cols
		var n, sum float64
		for i := lo; i < hi; i++ {
			switch {
			case mask == nil || mask[i]:
				n++
				sum += loss[i]
			case o.Kind == AggLUSPO:
				sum += loss[i]
			case o.Outside == OutsidePropagate:
				sum += float64(0 * loss[i])
			}
		}
		c := 1.0 // of the row
		switch o.Kind {
		case AggSeqMeanTokenMean:
			sum /= max(n, 1) + o.LenEps
			c /= max(n, 1) + o.LenEps
		case AggLUSPO:
			sum = float64(n * sum)
			c = n
		}
		total += sum
		c = float64(c*factor) / den
		for i := lo; i < hi; i++ {
			weight[i] = 0
			if mask == nil || mask[i] || o.Kind == AggLUSPO {
				weight[i] = c
			}
		}
	}
	return float64(total*factor) / den, weight, nil
}

// divisor returns what the sum over rows is divided by.
func (o *AggOptions) divisor(mask []bool, rows, cols int) (float64, error) {
	var tokens, full float64 // full: rows with a token
	for r := range rows {
		before := tokens
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask == nil || mask[i] {
				tokens++
			}
		}
		if tokens > before {
			full++
		}
	}
	if o.EmptyRows == AggCounted {
		full = float64(rows)
	}
	if o.Denominator != AggMicro {
		tokens, full = o.Tokens, o.Rows
	}
	length := cmp.Or(o.Length, float64(cols))

	var den float64
	switch o.Kind {
	case AggToken:
		den = tokens + o.Eps
	case AggSeqMeanTokenMean, AggSeqMeanTokenSum:
		den = full + o.Eps
	case AggSeqSumConst:
		den = length
		if o.DivBatch {
			den = float64(length * (full + o.Eps))
		}
	case AggLUSPO:
		den = float64(rows * cols)
	case AggTokenSum:
		den = 1
	}
	if den == 0 && o.Empty == EmptyError {
		return 0, ErrEmptyMask
	}
	return den, nil
}
