package rl

import "math"

// Scope is the set over which whitening takes mean and variance (whiten.scope).
type Scope int

const (
	ScopeNone       Scope = iota // no whitening
	ScopeRow                     // each row: OpenRLHF masked_normalize
	ScopeMinibatch               // the minibatch of an update, inside the loss: OpenAI, CleanRL
	ScopeLocalBatch              // the rollout batch of one process: TRL PPO
	ScopeGlobal                  // the rollout batch of all processes: verl, OpenRLHF, NeMo-RL
)

var scopes = enumeration[Scope]("whiten.scope", "none", "row", "minibatch", "local_batch", "global")

func (s Scope) String() string { return scopes.text(s) }

// ParseScope reads a value of whiten.scope.
func ParseScope(s string) (Scope, error) { return scopes.parse(s) }

// EpsPlace is where whitening puts ε (whiten.eps_place).
type EpsPlace int

const (
	InsideSqrt EpsPlace = iota // 1/√(v+ε): TRL, verl, NeMo-RL, OpenAI
	FloorVar                   // 1/√max(v, ε): OpenRLHF
	AddStd                     // 1/(√v+ε): CleanRL
	NoStd                      // 1: OpenRLHF no_std_norm
)

var epsPlaces = enumeration[EpsPlace]("whiten.eps_place", "inside_sqrt", "floor_var", "add_std", "no_std")

func (p EpsPlace) String() string { return epsPlaces.text(p) }

// ParseEpsPlace reads a value of whiten.eps_place.
func ParseEpsPlace(s string) (EpsPlace, error) { return epsPlaces.parse(s) }

// ShiftMean is what whitening does to the mean (whiten.shift_mean).
type ShiftMean int

const (
	ShiftTrue         ShiftMean = iota // (x−μ)/σ
	ShiftFalseAddBack                  // (x−μ)/σ + μ: TRL, verl, OpenAI
	ShiftFalsePlain                    // x/σ
)

var shiftMeans = enumeration[ShiftMean]("whiten.shift_mean", "true", "false_add_back", "false_plain")

func (s ShiftMean) String() string { return shiftMeans.text(s) }

// ParseShiftMean reads a value of whiten.shift_mean.
func ParseShiftMean(s string) (ShiftMean, error) { return shiftMeans.parse(s) }

// WhitenMask is the mask of which whitening takes its statistics (whiten.mask).
type WhitenMask int

const (
	WhitenResponse WhitenMask = iota // the response mask
	WhitenLength                     // up to the last response token, holes included: TRL PPO
	WhitenAll                        // every cell, padding too: OpenAI, CleanRL
)

var whitenMasks = enumeration[WhitenMask]("whiten.mask", "response", "length", "none")

func (m WhitenMask) String() string { return whitenMasks.text(m) }

// ParseWhitenMask reads a value of whiten.mask.
func ParseWhitenMask(s string) (WhitenMask, error) { return whitenMasks.parse(s) }

// Of returns the mask of kind m for a response mask of rows×cols: the mask itself, a new one, or nil.
func (m WhitenMask) Of(mask []bool, rows, cols int) []bool {
	switch m {
	case WhitenResponse:
		return mask
	case WhitenLength:
		return LengthMask(nil, mask, rows, cols, 0)
	case WhitenAll:
		return nil
	}
	panic(badOption)
}

// LengthMask stores in dst the mask that is true up to the last true cell of each row of mask, and extra cells further
// as far as there are columns. A row without a true cell has the extra cells alone, from column 0 on: its last one is the column −1, as the
// sequence length of trl@1.12 ppo_trainer is. dst may be nil, or mask itself.
func LengthMask(dst, mask []bool, rows, cols, extra int) []bool {
	need(rows >= 0 && cols >= 0 && len(mask) == rows*cols && extra >= 0, badLength)
	if dst == nil {
		dst = make([]bool, len(mask))
	}
	need(len(dst) == len(mask), badLength)
	for i := range rows {
		last := lastTrue(row(mask, i, cols), cols)
		for t := range cols {
			dst[i*cols+t] = t <= last+extra
		}
	}
	return dst
}

// lastTrue returns the index of the last true cell of a row of cols cells, or −1; that of a mask that is nil is cols−1.
func lastTrue(mask []bool, cols int) int {
	for t := cols - 1; t >= 0; t-- {
		if mask == nil || mask[t] {
			return t
		}
	}
	return -1
}

// WhitenOptions are the options of Whiten.
type WhitenOptions struct {
	Var      VarOptions // mean.eps, mean.nan_outside, whiten.ddof, whiten.single; Empty is the rule for Σm = 0
	Scope    Scope      // whiten.scope; the default ScopeNone does not whiten
	EpsPlace EpsPlace   // whiten.eps_place
	Eps      float64    // whiten.eps; 1e-8 in every framework
	Shift    ShiftMean  // whiten.shift_mean
	Remask   bool       // whiten.remask: masked cells are 0 afterwards

	// ConstantZero makes x−μ exactly 0 when all true cells are equal, where otherwise rounding and mean.eps leave a
	// residue that ε magnifies. No framework has it; the systems of this repository do.
	ConstantZero bool
}

// Whiten stores in dst the cells of x, rows×cols, shifted by the mean and divided by the standard deviation of the true
// cells:
//
//	y = (x−μ)·s   with s = 1/√(v+ε), 1/√max(v,ε), 1/(√v+ε) or 1, and μ, v as in MaskedVar
//
// For ScopeRow mean and variance are those of the row. For the other scopes they are those of all of x, and which cells x
// holds is up to the caller. A mask that is nil is true everywhere.
//
// Masked cells hold the same formula, which is what the frameworks leave there, unless o.Remask. Where Σm = 0, EmptyNaN
// fills the scope with NaN and EmptyZero with 0; one true cell under SingleZero gives 0, plus μ if that is added back.
//
// dst may be x. The errors are ErrEmptyMask and ErrSingle; dst then holds nothing of use.
//
// Source: masked_whiten of TRL 1.12.0 (PPO) and verl 0.9.1, masked_normalize and compute_advantages_and_returns of
// OpenRLHF 0.11.2; goldens masked_stats and gae.
func Whiten(dst, x []float64, mask []bool, rows, cols int, o WhitenOptions) ([]float64, error) {
	needMatrix(x, mask, rows, cols)
	need(o.EpsPlace >= InsideSqrt && o.EpsPlace <= NoStd && o.Shift >= ShiftTrue && o.Shift <= ShiftFalsePlain, badOption)
	dst = output(dst, len(x))
	switch o.Scope {
	case ScopeNone:
		copy(dst, x)
	case ScopeRow:
		for i := range rows {
			if err := whiten(row(dst, i, cols), row(x, i, cols), row(mask, i, cols), o); err != nil {
				return nil, err
			}
		}
	case ScopeMinibatch, ScopeLocalBatch, ScopeGlobal:
		if err := whiten(dst, x, mask, o); err != nil {
			return nil, err
		}
	default:
		panic(badOption)
	}
	if o.Remask {
		Remask(dst, dst, mask)
	}
	return dst, nil
}

// Remask stores x in dst, with 0 at masked cells. A mask that is nil is true everywhere.
func Remask(dst, x []float64, mask []bool) []float64 {
	need(mask == nil || len(mask) == len(x), badLength)
	dst = output(dst, len(x))
	for i, v := range x {
		if mask != nil && !mask[i] {
			v = 0
		}
		dst[i] = v
	}
	return dst
}

// whiten whitens one scope.
func whiten(dst, x []float64, mask []bool, o WhitenOptions) error {
	mean, v, err := moments(x, mask, o.Var)
	if err != nil {
		return err
	}
	n := count(len(x), mask)
	if n == 0 {
		for i := range dst {
			dst[i] = v // NaN or 0
		}
		return nil
	}
	var s float64
	switch o.EpsPlace {
	case InsideSqrt:
		s = 1 / math.Sqrt(v+o.Eps)
	case FloorVar:
		s = 1 / math.Sqrt(max(v, o.Eps))
	case AddStd:
		s = 1 / (math.Sqrt(v) + o.Eps)
	case NoStd:
		s = 1
	}
	zero := n == 1 && o.Var.Single == SingleZero || o.ConstantZero && constant(x, mask)
	for i, u := range x {
		var y float64
		switch {
		case zero && (mask == nil || mask[i]):
			if o.Shift == ShiftFalsePlain && n > 1 {
				y = float64(u * s)
			}
		case o.Shift == ShiftFalsePlain:
			y = float64(u * s)
		default:
			y = float64((u - mean) * s)
		}
		if o.Shift == ShiftFalseAddBack {
			y += mean
		}
		dst[i] = y
	}
	return nil
}

// constant reports whether all true cells are equal and finite.
func constant(x []float64, mask []bool) bool {
	first, seen := 0.0, false
	for i, v := range x {
		switch {
		case mask != nil && !mask[i]:
		case !seen:
			first, seen = v, true
		case v != first:
			return false
		}
	}
	return seen && !math.IsNaN(first) && !math.IsInf(first, 0)
}
