package rl

import "math"

// RatioLevel is the set of tokens that share one importance ratio. It is the option ratio.level.
type RatioLevel int

const (
	RatioToken   RatioLevel = iota // ρ_t = exp(lp_t − old_t)
	RatioSeqMean                   // ρ = exp(mean over the row): GSPO
	RatioSeqSum                    // ρ = exp(sum over the row): TRL RLOO, recrl
)

var ratioLevels = enumeration[RatioLevel]("ratio.level", "token", "seq_mean", "seq_sum")

func (l RatioLevel) String() string { return ratioLevels.text(l) }

// ParseRatioLevel returns the level of that name.
func ParseRatioLevel(s string) (RatioLevel, error) { return ratioLevels.parse(s) }

// RatioOptions selects the importance ratio. The zero value is the token ratio without a clamp.
type RatioOptions struct {
	Level RatioLevel // ratio.level

	// LogClamp bounds every token's log-ratio, before any sum, to [−LogClamp, LogClamp] nats (ratio.log_clamp); 0 means
	// none. verl, OpenRLHF and system C have 20.
	LogClamp float64
	// SeqLogMax bounds the row's log-ratio from above; 0 means none. verl's GSPO has 10. The gradient passes only below it.
	SeqLogMax float64
	// LenEps is added to the number of true cells of a row by seq_mean; the number itself counts at least 1.
	LenEps float64
	// PerToken gives every token of a sequence ratio the gradient ∂L/∂ρ_t·ρ of its own cell, with nothing shared along the row:
	// verl's lp − sg lp + sg(mean). Where the loss is the same in all cells of a row the two agree.
	PerToken bool
}

// Ratio stores in dst, rows×cols, the importance ratio of every cell; a sequence ratio is repeated along its row. old nil
// stands for a detached copy of lp (ratio.old stopgrad_new): every ratio is 1 and still has its gradient. Only true cells
// enter a sequence ratio, by selection; a row without one has ratio 1. A nil mask takes every cell, a nil dst is allocated;
// dst may alias lp or old.
//
//	token     ρ_t = exp(clamp(lp_t − old_t))
//	seq_mean  ρ = exp(Σ clamp(lp − old)·m / (max(Σm, 1) + LenEps))
//	seq_sum   ρ = exp(Σ clamp(lp − old)·m)
//
// Source: Schulman et al. 2017, Eq. 6; Zheng et al. 2025 (GSPO), Eq. 7. The golden section policy_loss pins verl 0.9.1,
// OpenRLHF 0.11.2 and TRL 1.16.0.
func Ratio(dst, lp, old []float64, mask []bool, rows, cols int, o RatioOptions) []float64 {
	if old == nil {
		old = lp
	}
	checkGrid(rows, cols, mask, lp, old)
	need(ratioLevels.has(o.Level), badOption)
	dst = output(dst, rows*cols)
	if o.Level == RatioToken {
		for i, x := range lp {
			d, _ := o.clamped(x - old[i])
			dst[i] = math.Exp(d)
		}
		return dst
	}
	for r := range rows {
		s, _ := o.mean(lp, old, mask, r*cols, (r+1)*cols)
		if o.SeqLogMax > 0 {
			s = min(s, o.SeqLogMax)
		}
		ratio := math.Exp(s)
		for i := r * cols; i < (r+1)*cols; i++ {
			dst[i] = ratio
		}
	}
	return dst
}

// clamped returns the bounded log-ratio and the derivative of the bound, 0 on it.
func (o *RatioOptions) clamped(d float64) (x, pass float64) {
	if o.LogClamp <= 0 {
		return d, 1
	}
	if -o.LogClamp < d && d < o.LogClamp {
		return d, 1
	}
	return max(min(d, o.LogClamp), -o.LogClamp), 0
}

// mean returns the log-ratio of cells lo to hi before SeqLogMax, and the divisor.
func (o *RatioOptions) mean(lp, old []float64, mask []bool, lo, hi int) (s, n float64) {
	for i := lo; i < hi; i++ {
		if mask == nil || mask[i] {
			d, _ := o.clamped(lp[i] - old[i])
			s += d
			n++
		}
	}
	n = max(n, 1) + o.LenEps
	if o.Level == RatioSeqSum {
		n = 1
	}
	return s / n, n
}

// RatioBackward adds to dlp the gradient with respect to lp of a loss with the gradient dratio with respect to the cells
// of the ratio that [Ratio] returned for the same arguments:
//
//	token     ∂L/∂lp_t = ∂L/∂ρ_t·ρ_t
//	seq_mean  ∂L/∂lp_t = m_t/n·Σ_j ∂L/∂ρ_j·ρ         seq_sum: n = 1
//	PerToken  ∂L/∂lp_t = m_t·∂L/∂ρ_t·ρ
//
// and 0 where a clamp is on. A masked cell with dratio 0 stays as it is, whatever its ratio.
func RatioBackward(dlp, dratio, ratio, lp, old []float64, mask []bool, rows, cols int, o RatioOptions) {
	if old == nil {
		old = lp
	}
	checkGrid(rows, cols, mask, dlp, dratio, ratio, lp, old)
	if o.Level == RatioToken {
		for i, g := range dratio {
			if g == 0 && mask != nil && !mask[i] {
				continue
			}
			_, pass := o.clamped(lp[i] - old[i])
			dlp[i] += float64(pass * float64(g*ratio[i]))
		}
		return
	}
	for r := range rows {
		lo, hi := r*cols, (r+1)*cols
		s, n := o.mean(lp, old, mask, lo, hi)
		if o.SeqLogMax > 0 && !(s < o.SeqLogMax) {
			continue
		}
		var sum float64
		for i := lo; i < hi; i++ {
			if dratio[i] != 0 || mask == nil || mask[i] {
				sum += float64(dratio[i] * ratio[i])
			}
		}
		sum /= n
		for i := lo; i < hi; i++ {
			if mask != nil && !mask[i] {
				continue
			}
			if o.PerToken {
				dlp[i] += float64(dratio[i] * ratio[i])
				continue
			}
			_, pass := o.clamped(lp[i] - old[i])
			dlp[i] += float64(pass * sum)
		}
	}
}
