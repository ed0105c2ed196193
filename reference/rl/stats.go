package rl

import "math"

// EmptyRule is what a statistic of no cells is (mean.empty).
type EmptyRule int

const (
	EmptyNaN   EmptyRule = iota // 0/0: TRL PPO, OpenRLHF
	EmptyZero                   // 0: verl, NeMo-RL, open-instruct
	EmptyError                  // ErrEmptyMask: the variances of TRL and verl
)

var emptyRules = enumeration[EmptyRule]("mean.empty", "nan", "zero", "error")

func (r EmptyRule) String() string { return emptyRules.text(r) }

// ParseEmptyRule reads a value of mean.empty.
func ParseEmptyRule(s string) (EmptyRule, error) { return emptyRules.parse(s) }

// OutsideRule is how a sum leaves out masked cells (mean.nan_outside).
type OutsideRule int

const (
	OutsidePropagate OutsideRule = iota // Σ x·m: NaN or an infinity at a masked cell makes the sum NaN (TRL, OpenRLHF, NeMo-RL)
	OutsideIgnore                       // Σ over true cells only (verl)
)

var outsideRules = enumeration[OutsideRule]("mean.nan_outside", "propagate", "ignore")

func (r OutsideRule) String() string { return outsideRules.text(r) }

// ParseOutsideRule reads a value of mean.nan_outside.
func ParseOutsideRule(s string) (OutsideRule, error) { return outsideRules.parse(s) }

// SingleRule is the variance, and the whitened value, of one cell (whiten.single).
type SingleRule int

const (
	SingleNaN   SingleRule = iota // as computed: 0·(1/0) = NaN with ddof 1 (TRL PPO); with ddof 0, and with mean.eps > 0, a number
	SingleZero                    // exactly 0
	SingleError                   // ErrSingle (verl)
)

var singleRules = enumeration[SingleRule]("whiten.single", "nan", "zero", "error")

func (r SingleRule) String() string { return singleRules.text(r) }

// ParseSingleRule reads a value of whiten.single.
func ParseSingleRule(s string) (SingleRule, error) { return singleRules.parse(s) }

// MeanOptions are the options of a masked mean.
type MeanOptions struct {
	Eps     float64     // mean.eps, added to Σm. 0 (default) in TRL PPO and OpenRLHF, 1e-8 in verl and NeMo-RL.
	Empty   EmptyRule   // mean.empty
	Outside OutsideRule // mean.nan_outside
}

// VarOptions are the options of a masked variance.
type VarOptions struct {
	Mean   MeanOptions // Eps and Outside are those of both sums, that of the mean and that of the squares; Empty is not used
	DDof   int         // whiten.ddof, 0 (default) or 1
	Empty  EmptyRule   // the variance of no cells; TRL and verl with ddof 1: EmptyError
	Single SingleRule  // whiten.single
}

// MaskedSum returns Σ x·m. A mask that is nil is true everywhere.
//
// Source: verl 0.9.1 masked_sum (OutsideIgnore); golden masked_stats.
func MaskedSum(x []float64, mask []bool, outside OutsideRule) float64 {
	need(mask == nil || len(mask) == len(x), badLength)
	var sum float64
	for i, v := range x {
		if mask == nil || mask[i] {
			sum += v
		} else if outside == OutsidePropagate {
			sum += float64(v * 0)
		}
	}
	return sum
}

// count returns Σm.
func count(n int, mask []bool) float64 {
	if mask == nil {
		return float64(n)
	}
	k := 0
	for _, m := range mask {
		if m {
			k++
		}
	}
	return float64(k)
}

// MaskedMean returns Σ x·m / (Σm + eps), and o.Empty for Σm = 0. A mask that is nil is true everywhere. The error is
// ErrEmptyMask, with NaN.
//
// Source: masked_mean of TRL 1.12.0 (PPO), verl 0.9.1 and OpenRLHF 0.11.2; golden masked_stats.
func MaskedMean(x []float64, mask []bool, o MeanOptions) (float64, error) {
	n := count(len(x), mask)
	sum := MaskedSum(x, mask, o.Outside)
	if n == 0 {
		switch o.Empty {
		case EmptyError:
			return math.NaN(), ErrEmptyMask
		case EmptyNaN:
			return math.NaN(), nil
		}
		return sum, nil // 0, or NaN that propagates from outside
	}
	return sum / (n + o.Eps), nil
}

// MaskedMeanRows stores in dst[i] the masked mean of row i of x, which is rows×cols; see MaskedMean. It stops at the first
// error.
func MaskedMeanRows(dst, x []float64, mask []bool, rows, cols int, o MeanOptions) ([]float64, error) {
	needMatrix(x, mask, rows, cols)
	dst = output(dst, rows)
	for i := range rows {
		mean, err := MaskedMean(row(x, i, cols), row(mask, i, cols), o)
		if err != nil {
			return nil, err
		}
		dst[i] = mean
	}
	return dst, nil
}

// RowSums stores in dst[i] Σ x·m over row i of x, which is rows×cols: the reward of a sequence from those of its tokens.
// Masked cells are selected away; a mask that is nil is true everywhere.
func RowSums(dst, x []float64, mask []bool, rows, cols int) []float64 {
	needMatrix(x, mask, rows, cols)
	dst = output(dst, rows)
	for i := range rows {
		dst[i] = MaskedSum(row(x, i, cols), row(mask, i, cols), OutsideIgnore)
	}
	return dst
}

// MaskedVar returns the variance, in two passes,
//
//	Σ (x−μ)²·m / (n+eps) · n/(n−ddof),  n = Σm,  μ = Σ x·m / (n+eps).
//
// A mask that is nil is true everywhere. The errors are ErrEmptyMask and ErrSingle, with NaN.
//
// Source: masked_var of TRL 1.12.0 (PPO) and verl 0.9.1; golden masked_stats. E[x²] − μ² is another formula: in float32 it
// gave −2075 instead of −0.95 (NeMo-RL#4158).
func MaskedVar(x []float64, mask []bool, o VarOptions) (float64, error) {
	_, v, err := moments(x, mask, o)
	return v, err
}

// moments returns the mean and the variance of MaskedVar.
func moments(x []float64, mask []bool, o VarOptions) (mean, variance float64, err error) {
	need(o.DDof == 0 || o.DDof == 1, badOption)
	need(mask == nil || len(mask) == len(x), badLength)
	n := count(len(x), mask)
	switch {
	case n == 0 && o.Empty == EmptyError:
		return math.NaN(), math.NaN(), ErrEmptyMask
	case n == 0 && o.Empty == EmptyNaN:
		return math.NaN(), math.NaN(), nil
	case n == 0:
		return 0, 0, nil
	case n == 1 && o.Single == SingleError:
		return math.NaN(), math.NaN(), ErrSingle
	}
	mean = MaskedSum(x, mask, o.Mean.Outside) / (n + o.Mean.Eps)
	if n == 1 && o.Single == SingleZero {
		return mean, 0, nil
	}
	var ss float64 // Σ (x−μ)²·m
	for i, v := range x {
		d := v - mean
		if mask == nil || mask[i] {
			ss += float64(d * d)
		} else if o.Mean.Outside == OutsidePropagate {
			ss += float64(float64(d*d) * 0)
		}
	}
	variance = ss / (n + o.Mean.Eps)
	if o.DDof == 1 {
		variance = float64(variance * (n / (n - 1)))
	}
	return mean, variance, nil
}

// needMatrix panics unless x is rows×cols and the mask, if there is one, too.
func needMatrix(x []float64, mask []bool, rows, cols int) {
	need(rows >= 0 && cols >= 0 && len(x) == rows*cols, badLength)
	need(mask == nil || len(mask) == len(x), badLength)
}

// row returns row i of x, or nil if x is nil.
func row[E any](x []E, i, cols int) []E {
	if x == nil {
		return nil
	}
	return x[i*cols : (i+1)*cols : (i+1)*cols]
}
