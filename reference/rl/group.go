package rl

import (
	"math"
	"slices"
)

// Center is what is subtracted from a reward (adv.center).
type Center int

const (
	CenterMean Center = iota // the mean of its group
	CenterLOO                // the mean of the others of its group
	CenterNone               // nothing
)

var centers = enumeration[Center]("adv.center", "mean", "loo", "none")

func (c Center) String() string { return centers.text(c) }

// ParseCenter reads a value of adv.center.
func ParseCenter(s string) (Center, error) { return centers.parse(s) }

// Scale is what a centred reward is divided by (adv.scale).
type Scale int

const (
	ScaleNone     Scale = iota // nothing: Dr.GRPO, RLOO
	ScaleGroupStd              // the standard deviation of its group
	ScaleBatchStd              // that of the whole batch
	ScaleLOOStd                // that of the others of its group: NeMo-RL
)

var scales = enumeration[Scale]("adv.scale", "none", "group_std", "batch_std", "loo_std")

func (s Scale) String() string { return scales.text(s) }

// ParseScale reads a value of adv.scale.
func ParseScale(s string) (Scale, error) { return scales.parse(s) }

// ZeroStd is what happens where the standard deviation is 0 (adv.zero_std).
type ZeroStd int

const (
	ZeroStdDivide ZeroStd = iota // "divide_eps": divided by ε like all others
	ZeroStdSkip                  // "skip": not divided. NeMo-RL
	// ZeroStdZero, "zero", makes the advantages of a group of equal rewards exactly 0, where rounding of the mean otherwise
	// leaves a residue over ε. No framework has it; the systems of this repository do.
	ZeroStdZero
)

var zeroStds = enumeration[ZeroStd]("adv.zero_std", "divide_eps", "skip", "zero")

func (z ZeroStd) String() string { return zeroStds.text(z) }

// ParseZeroStd reads a value of adv.zero_std.
func ParseZeroStd(s string) (ZeroStd, error) { return zeroStds.parse(s) }

// Singleton is the advantage of the only sample of a group (adv.singleton).
type Singleton int

const (
	SingletonError Singleton = iota // ErrGroupOfOne
	SingletonZero                   // 0: verl rloo_vectorized, TRL
	SingletonRaw                    // μ = 0 and σ = 1: r, or r/(1+ε) where a group's σ divides. verl GRPO and rloo
	SingletonNaN                    // "nan": NaN, as 0/0 gives without a rule. OpenRLHF
)

var singletons = enumeration[Singleton]("adv.singleton", "error", "zero", "raw", "nan")

func (s Singleton) String() string { return singletons.text(s) }

// ParseSingleton reads a value of adv.singleton.
func ParseSingleton(s string) (Singleton, error) { return singletons.parse(s) }

// GroupOptions are the options of GroupAdvantage. The zero value is Dr.GRPO: r − mean.
type GroupOptions struct {
	Center    Center    // adv.center
	Scale     Scale     // adv.scale
	DDof      int       // adv.ddof, 0 (default) or 1
	Eps       float64   // adv.eps, added to the standard deviation. TRL 1e-4, verl 1e-6, OpenRLHF 1e-9.
	ZeroStd   ZeroStd   // adv.zero_std
	Singleton Singleton // adv.singleton

	// BatchCentred: ScaleBatchStd takes mean and standard deviation of the centred rewards of the batch and subtracts that
	// mean too (TRL's RLOO normalize_advantages; the masked-language-model system). By default it divides by the standard
	// deviation of the rewards themselves (TRL's GRPO scale_rewards=batch).
	BatchCentred bool

	// SkipNaN leaves NaN rewards out of every mean and standard deviation, and replaces NaN advantages by 0 at the end, as TRL
	// does with completions that no reward function could score. Singleton is then about what is left of the group.
	SkipNaN bool
}

// GroupAdvantage stores in adv the advantage of each reward,
//
//	adv_i = (r_i − c_i) / (σ_i + eps)
//
// with c_i the mean of the group or of the others in it, and σ_i the standard deviation that o.Scale names, over n−ddof. The
// σ of the others of a pair, one number with ddof 1, counts as 0. group holds the group of each reward, 0 ≤ group[i] <
// len(r), see GroupBlocks, GroupUIDs and GroupPrompts; the samples of a group need not be neighbours. nil is one group of all:
// a batch baseline.
//
// adv may be r. The error is ErrGroupOfOne, and adv then holds nothing of use. ScaleLOOStd takes time Σ n_g², all else n.
// Nothing is allocated beside adv where ids do not decrease, as in GroupBlocks, but for ZeroStdZero with BatchCentred and
// ScaleLOOStd in place; samples in another order are sorted by counting, 3 ints each.
//
// It implements the outcome advantage of GRPO, Shao et al. 2024 (arXiv 2402.03300), Section 4.1.2, which does not say which
// σ it means; Dr.GRPO, Liu et al. 2025 (arXiv 2503.20783); and RLOO, Ahmadian et al. 2024 (arXiv 2402.14740). Goldens
// group_advantages (verl 0.9.1, TRL 1.16.0), gae (OpenRLHF 0.11.2) and conventions (open-instruct, NeMo-RL) pin ddof, ε and
// the leave-one-out forms.
func GroupAdvantage(adv, r []float64, group []int, o GroupOptions) ([]float64, error) {
	need(o.Center >= CenterMean && o.Center <= CenterNone && o.Scale >= ScaleNone && o.Scale <= ScaleLOOStd, badOption)
	need(o.ZeroStd >= ZeroStdDivide && o.ZeroStd <= ZeroStdZero, badOption)
	need(o.Singleton >= SingletonError && o.Singleton <= SingletonNaN, badOption)
	need(o.DDof == 0 || o.DDof == 1, badOption)
	need(group == nil || len(group) == len(r), badLength)
	adv = output(adv, len(r))

	batchStd := math.NaN()
	if o.Scale == ScaleBatchStd && !o.BatchCentred {
		_, batchStd = meanStd(r, o.DDof, o.SkipNaN, -1)
	}
	each := scattered
	if group == nil || slices.IsSorted(group) {
		each = neighbours
	}
	still, err := each(adv, r, group, batchStd, o)
	if err != nil {
		return nil, err
	}
	if o.Scale == ScaleBatchStd && o.BatchCentred {
		mean, std := meanStd(adv, o.DDof, o.SkipNaN, -1)
		for i, a := range adv {
			adv[i] = divide(a-mean, std, o)
		}
		for _, i := range still {
			adv[i] = 0
		}
	}
	if o.SkipNaN {
		for i, a := range adv {
			if math.IsNaN(a) {
				adv[i] = 0
			}
		}
	}
	return adv, nil
}

// neighbours stores the advantages of groups that are runs of neighbours, and returns the places of what keepsZero names.
func neighbours(adv, r []float64, group []int, batchStd float64, o GroupOptions) (still []int, err error) {
	need(len(group) == 0 || group[0] >= 0 && group[len(group)-1] < len(r), badGroup)
	for lo, hi := 0, len(r); lo < len(r); lo, hi = hi, len(r) {
		if group != nil {
			for hi = lo + 1; hi < len(r) && group[hi] == group[lo]; hi++ {
			}
		}
		rewards := r[lo:hi]
		if o.Scale == ScaleLOOStd && &adv[0] == &r[0] {
			rewards = slices.Clone(rewards) // they are read again after adv is written
		}
		if o.keepsZero(rewards) {
			for i := lo; i < hi; i++ {
				still = append(still, i)
			}
		}
		if err := groupAdvantage(adv[lo:hi], rewards, batchStd, o); err != nil {
			return nil, err
		}
	}
	return still, nil
}

// scattered is neighbours for groups in any order.
func scattered(adv, r []float64, group []int, batchStd float64, o GroupOptions) (still []int, err error) {
	starts, members := byGroup(group, len(r))
	var rewards, a []float64 // of one group
	for g := range len(starts) - 1 {
		ids := members[starts[g]:starts[g+1]]
		rewards, a = rewards[:0], slices.Grow(a[:0], len(ids))[:len(ids)]
		for _, i := range ids {
			rewards = append(rewards, r[i])
		}
		if o.keepsZero(rewards) {
			still = append(still, ids...)
		}
		if err := groupAdvantage(a, rewards, batchStd, o); err != nil {
			return nil, err
		}
		for k, i := range ids {
			adv[i] = a[k]
		}
	}
	return still, nil
}

// keepsZero reports whether the advantages of a group are 0 and stay so when the batch is centred: the mean of the batch is
// not exactly 0 after rounding.
func (o *GroupOptions) keepsZero(r []float64) bool {
	return o.ZeroStd == ZeroStdZero && o.Center != CenterNone && o.Scale == ScaleBatchStd && o.BatchCentred && allEqual(r, o.SkipNaN)
}

// groupAdvantage stores in adv the advantages of one group with the rewards r, NaN where the reward is skipped. adv may be r,
// but not for ScaleLOOStd.
func groupAdvantage(adv, r []float64, batchStd float64, o GroupOptions) error {
	var sum float64
	n := 0
	for _, v := range r {
		if !(o.SkipNaN && math.IsNaN(v)) {
			sum += v
			n++
		}
	}
	scaled := o.Scale == ScaleGroupStd || o.Scale == ScaleLOOStd
	if n == 1 && (o.Center != CenterNone || scaled) {
		for k, v := range r {
			if !(o.SkipNaN && math.IsNaN(v)) {
				lone, err := loneAdvantage(v, batchStd, o)
				if err != nil {
					return err
				}
				v = lone
			}
			adv[k] = v
		}
		return nil
	}
	mean, std := meanStd(r, o.DDof, o.SkipNaN, -1)
	equal := o.ZeroStd == ZeroStdZero && o.Center != CenterNone && allEqual(r, o.SkipNaN)
	for k, v := range r {
		if o.SkipNaN && math.IsNaN(v) {
			adv[k] = v
			continue
		}
		a := v
		switch {
		case equal:
			a = 0
		case o.Center == CenterMean:
			a = v - mean
		case o.Center == CenterLOO:
			a = v - (sum-v)/float64(n-1)
		}
		switch {
		case o.Scale == ScaleGroupStd:
			a = divide(a, std, o)
		case o.Scale == ScaleBatchStd && !o.BatchCentred:
			a = divide(a, batchStd, o)
		case o.Scale == ScaleLOOStd:
			s := 0.0
			if n > 2 {
				_, s = meanStd(r, o.DDof, o.SkipNaN, k)
			}
			a = divide(a, s, o)
		}
		adv[k] = a
	}
	return nil
}

// loneAdvantage returns the advantage of the only sample of a group.
func loneAdvantage(r, batchStd float64, o GroupOptions) (float64, error) {
	switch o.Singleton {
	case SingletonError:
		return 0, ErrGroupOfOne
	case SingletonZero:
		return 0, nil
	case SingletonNaN:
		return math.NaN(), nil
	}
	switch {
	case o.Scale == ScaleGroupStd, o.Scale == ScaleLOOStd:
		return divide(r, 1, o), nil
	case o.Scale == ScaleBatchStd && !o.BatchCentred:
		return divide(r, batchStd, o), nil
	}
	return r, nil
}

// divide returns a/(std + eps), or a if std is 0 and the rule says so.
func divide(a, std float64, o GroupOptions) float64 {
	if std == 0 && o.ZeroStd != ZeroStdDivide {
		return a
	}
	return a / (std + o.Eps)
}

// meanStd returns the mean of x without x[skip] and the standard deviation over n−ddof; skip = −1 leaves nothing out. With
// skipNaN, NaN is left out. The standard deviation of one number with ddof 1 is NaN.
func meanStd(x []float64, ddof int, skipNaN bool, skip int) (mean, std float64) {
	var sum, ss, n float64
	for k, v := range x {
		if k != skip && !(skipNaN && math.IsNaN(v)) {
			sum += v
			n++
		}
	}
	mean = sum / n
	for k, v := range x {
		if k != skip && !(skipNaN && math.IsNaN(v)) {
			d := v - mean
			ss += float64(d * d)
		}
	}
	return mean, math.Sqrt(ss / (n - float64(ddof)))
}

// NaNStd returns the standard deviation, over n−ddof, of the n elements of x that are not NaN; that of none, or of one with
// ddof 1, is NaN.
//
// Source: nanstd of TRL 1.16.0, which rounds n/(n−1) to float32; golden masked_stats.
func NaNStd(x []float64, ddof int) float64 {
	need(ddof == 0 || ddof == 1, badOption)
	_, std := meanStd(x, ddof, true, -1)
	return std
}

// allEqual reports whether x holds two numbers or more, all of them equal and finite.
func allEqual(x []float64, skipNaN bool) bool {
	var first float64
	n := 0
	for _, v := range x {
		switch {
		case skipNaN && math.IsNaN(v):
			continue
		case n == 0:
			first = v
		case v != first:
			return false
		}
		n++
	}
	return n > 1 && !math.IsNaN(first) && !math.IsInf(first, 0)
}
