package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// An operation on two tensors has the type that torch promotes them to: the wider one, and a 16-bit type only if both have that type.
// A trainer whose log-probs are bfloat16 and whose advantages are float32 so computes ratios and KL estimates in bfloat16 and losses in
// float32. The functions of a 16-bit type are those of float32, rounded once, so that the result of an operation on stored numbers is
// known to the bit, unless it lies next to the middle between two numbers of the format. What is computed here are these results.

// inHalf reports whether a batch has log-probs or values in a 16-bit type, and nothing says that they were cast down for the dump. Where everything
// else has the type, too, that may have been so, and rounded copies are what is tried next.
func inHalf(b *dump.Batch) bool {
	return slices.ContainsFunc([]string{"logp_new", "logp_old", "logp_ref", "values", "values_new"}, func(name string) bool { return halfOf(b, name) > 0 })
}

// halfOf returns the unit roundoff of the 16-bit type that a tensor of the trainer has, 0 if it has a wider one.
func halfOf(b *dump.Batch, name string) float64 {
	t := b.Tensors[name]
	if t == nil || t.Casts {
		return 0
	}
	if u, _ := t.Type.Unit(); u > tol.U32 {
		return u
	}
	return 0
}

// half returns the unit roundoff to which operations on two inputs round, 0 if that is no 16-bit type.
func half(x, y Input) float64 {
	if x.Half == y.Half {
		return x.Half
	}
	return 0
}

// rounded returns x in the format of unit roundoff u = 2^−p, and whether a number that is x but for an error of 16 units roundoff of float32
// may be rounded to the neighbour instead. The exponent is not bounded. Of the 53 digits of x the last 53 − p are added to the others
// where they are more than a half, or a half beside an odd digit.
func rounded(x, u float64) (y float64, open bool) {
	bits := math.Float64bits(x)
	switch exp := bits >> 52 & 0x7ff; {
	case exp == 0x7ff || x == 0:
		return x, false
	case exp < 64: // below the normal range x has fewer digits
		y, open = rounded(x*0x1p200, u)
		return y * 0x1p-200, open
	}
	drop := (math.Float64bits(u)>>52 - (1023 - 53)) & 63
	half := uint64(1) << (drop - 1)
	rest, odd := bits&(2*half-1), bits>>drop&1
	y = math.Float64frombits((bits + half - 1 + odd) &^ (2*half - 1))
	return y, max(rest, half)-min(rest, half) <= 1<<33 // 16·2⁻²⁴ of 2⁵³, the digits before being one
}

// promotedOld replaces the old log-probs by those of which a ratio in float64 is the one that the trainer has: logp_new less the logarithm
// of the ratio in the type of the two. Of a sequence the differences and their sum are of that type. sapo takes the difference of the
// ratio from 1, which has the type, too. vespo's weight is computed here, see [policy.promotedGamma].
func (p *policy) promotedOld(rows, cols int) {
	lp, old, o := p.lp, p.old, p.o.Ratio
	u := half(lp, old)
	y := Input{X: make([]float64, len(old.X)), Err: make([]float64, len(old.X)), Half: u}
	sequence := o.Level != rl.RatioToken || p.o.Kind == rl.LossVESPO
	if p.o.Kind == rl.LossSAPO && !sequence {
		p.rho = make([]float64, len(lp.X))
	}
	for i, x := range lp.X {
		d, _ := rounded(x-old.X[i], u) // of numbers of the format: nothing else is next to a middle by an error
		if sequence {
			y.X[i] = x - d
			continue
		}
		if o.LogClamp > 0 {
			d = max(min(d, o.LogClamp), -o.LogClamp)
		}
		rho, open := rounded(math.Exp(d), u)
		if open {
			y.Err[i] = 2 * u
		}
		if p.rho != nil {
			p.rho[i] = rho
			if d, _ := rounded(rho-1, u); d > -1 {
				rho = 1 + d
			} else { // the ratio is lost beside 1
				y.Err[i] = 1
			}
		}
		y.X[i] = x - math.Log(rho)
		if rho == 0 || math.IsInf(rho, 0) {
			y.X[i] = old.X[i]
		}
	}
	p.old = y
	if sequence {
		p.loose = Input{X: slices.Clone(y.X), Err: slices.Clone(y.Err), Half: u}
		p.promotedRows(rows, cols, u)
	}
}

// promotedOld returns old log-probs of which a ratio in float64 is the one that the trainer has, see [policy.promotedOld]; where the two do
// not have a 16-bit type they are as they were.
func (c *Case) promotedOld(lp, old Input, o rl.RatioOptions) Input {
	if half(lp, old) == 0 || old.X == nil || lp.X == nil {
		return old
	}
	p := &policy{lp: lp, old: old, mask: c.lossMask()}
	p.o.Ratio = o
	p.promotedOld(c.B.Rows, c.B.Cols)
	return p.old
}

// promotedRows rounds the sums of the log-ratios of rows, by what it adds to the smallest of them. A sum in float32 that lies next to the
// middle between two numbers of the format may have been rounded to the other one.
func (p *policy) promotedRows(rows, cols int, u float64) {
	for r := range rows {
		var sum, size, n float64
		least := -1
		for i := r * cols; i < (r+1)*cols; i++ {
			if !p.mask[i] {
				continue
			}
			d := p.lp.X[i] - p.old.X[i]
			if p.o.Kind == rl.LossVESPO {
				d = max(min(d, 20), -20)
			}
			sum += d
			size += math.Abs(d)
			n++
			if least < 0 || math.Abs(d) < math.Abs(p.lp.X[least]-p.old.X[least]) {
				least = i
			}
		}
		if least < 0 {
			continue
		}
		whole, _ := rounded(sum, u)
		p.old.X[least] -= whole - sum
		off := foldError(int(n), tol.U32) * size
		if grain(p.lp.X[r*cols:(r+1)*cols], p.old.X[r*cols:(r+1)*cols], p.mask[r*cols:(r+1)*cols], size) {
			off = 0
		}
		for _, s := range []float64{sum - off, sum + off} {
			if other, _ := rounded(s, u); other != whole {
				p.old.Err[least] = math.Abs(other - whole)
			}
		}
	}
}

// grain reports whether float32 adds the differences of a row, whose magnitudes add up to size, without an error in any order: if all are
// multiples of a power of two of which size is less than 2²⁴.
func grain(lp, old []float64, mask []bool, size float64) bool {
	unit := size * tol.U32
	for i, m := range mask {
		if d := lp[i] - old[i]; m && d != 0 {
			if k := d / math.Ldexp(1, math.Ilogb(unit)+1); k != math.Trunc(k) {
				return false
			}
		}
	}
	return size > 0
}

// promotedGamma returns vespo's weight where the log-probs have a 16-bit type: the sum s of a row has it, with the logarithms of the
// engine's weights added in place, and so has W = e^s; k, λ and all that they touch are float32. One step of the type in s or W is what a
// rounding that is open can do.
func (p *policy) promotedGamma(rows, cols int) Input {
	u, o := p.old.Half, p.o.VESPO
	y := Input{X: make([]float64, rows*cols), Err: make([]float64, rows*cols)}
	for r := range rows {
		var s, e, engine, engineE, n float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if !p.mask[i] {
				continue
			}
			s += max(min(p.lp.X[i]-p.old.X[i], 20), -20)
			e += p.old.E(i)
			n++
			if g := p.gamma; g.X != nil {
				l := max(min(math.Log(g.X[i]), 20), math.Log(1e-8))
				engine += l
				engineE += 4 * tol.U32 * math.Abs(l)
				if rel := g.E(i); rel > 0 && g.X[i] > 1e-8 {
					engineE += min(ofLog(rel/g.X[i]), 40)
				}
			}
		}
		if p.gamma.X != nil {
			engineE += foldError(int(n), tol.U32) * math.Abs(engine)
			sum, open := rounded(s+engine, u)
			for _, x := range []float64{s + engine - engineE, s + engine + engineE} {
				other, _ := rounded(x, u)
				open = open || other != sum
			}
			if s = sum; open {
				e += 2*u*math.Abs(sum) + engineE
			}
		}
		s = max(min(s, 20), math.Log(1e-8))
		w, open := rounded(math.Exp(s), u)
		var we float64
		for _, x := range []float64{s - e, s + e} {
			other, _ := rounded(math.Exp(x), u)
			we = max(we, math.Abs(other-w))
		}
		if open {
			we = max(we, 2*u*w)
		}
		for i := r * cols; i < (r+1)*cols; i++ {
			k, lambda := o.KPos, o.LambdaPos
			if p.adv.X[i] < 0 {
				k, lambda = o.KNeg, o.LambdaNeg
			}
			arg := math.Abs(k)*e + lambda*we + 4*tol.U32*(lambda+math.Abs(k*s)+lambda*w)
			y.X[i] = math.Exp(lambda + float64(k*s) - float64(lambda*w))
			y.Err[i] = y.X[i]*(math.Expm1(arg)+elementary*tol.U32) + expUnderflow(tol.U32)
		}
	}
	return y
}

// promotedClip returns clip bounds in the type of the ratio: torch.clamp(ρ, 1 − ε, 1 + ε) gives the bound as a number of that type.
func promotedClip(clip rl.ClipOptions, u float64) rl.ClipOptions {
	if u == 0 {
		return clip
	}
	if !math.IsInf(clip.Low, 0) {
		low, _ := rounded(1-clip.Low, u)
		clip.Low = 1 - low
	}
	if !math.IsInf(clip.High, 0) {
		switch high, _ := rounded(1+clip.High, u); {
		case clip.HighAbsolute:
			clip.High, _ = rounded(clip.High, u)
		default:
			clip.High = high - 1
		}
	}
	if clip.Delta > 0 {
		clip.Delta, _ = rounded(clip.Delta, u)
	}
	return clip
}
