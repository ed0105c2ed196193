package golden

import (
	"math"

	"plumbline/reference/rl"
)

// openrlhfKL is compute_approx_kl, which rounds the log-probs to float32 and computes there.
func openrlhfKL(c *call) []answer {
	lp, ref := logProbPair(c)
	o := c.estimator(openrlhfGroupProfile, native{{Name: "kl_estimator", Value: c.text("kl_estimator")}, {Name: "use_kl_loss", Value: true},
		{Name: "unbiased_gradient", Value: c.flag("unbiased_gradient")}})
	var old []float64
	if c.flag("log_probs_old") {
		old = c.shaped("old_logp", c.tensor("logp").Shape...)
	} else {
		o.ISCap = 0
	}
	if !c.ok() {
		return nil
	}
	value, grad := rl.KL(nil, nil, lp, ref, old, o)
	if o.Grad == rl.KLStraightThroughK2 {
		straightThrough(value, lp, ref)
	}
	errValue, errGrad := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range lp {
		w, errW := 1.0, 0.0
		if old != nil {
			w = math.Exp(lp[i] - old[i])
			errW = float64(w*float64(u32*(math.Abs(lp[i])+math.Abs(old[i])+math.Abs(lp[i]-old[i])))) + float64(3*u32*w)
			w, errW = min(w, o.ISCap), min(errW, o.ISCap)
		}
		errValue[i], errGrad[i] = klFloat32(&o, lp[i], ref[i], w, errW, value[i], grad[i])
	}
	return []answer{bounded("kl", value, errValue, LeakLogRatio), bounded("dkl_dlogp", grad, errGrad, LeakLogRatio)}
}

// klFloat32 returns the bounds of one cell. With u the roundoff of float32, d carries e = u·(|lp| + |ref| + |d|); then
//
//	k1 e,   k2 |d|·e + e²/2 + 2u·k2,   k3 |e^{−x} − 1|·e + e^{−x}·(2u + e²) + u·(|e^{−x} + x| + k3)   x = max(d, −10)
//
// and their slopes likewise. Behind a clamp the value is its bound and the slope 0; a cell so near to a clamp that e decides
// may have either slope. With unbiased_gradient the slope is w·d, and the value gets the rounding of two halves that cancel.
func klFloat32(o *rl.KLOptions, lp, ref, w, errW, value, grad float64) (errValue, errGrad float64) {
	d := lp - ref
	e := u32 * (math.Abs(lp) + math.Abs(ref) + math.Abs(d))
	var raw, slope float64 // without the outer clamp
	switch o.Kind {
	case rl.KLK1:
		raw, slope = d, 1
		errValue = e
	case rl.KLK2:
		raw, slope = d*d/2, d
		errValue, errGrad = float64(math.Abs(d)*e)+e*e/2+2*u32*raw, e
	case rl.KLK3:
		x := max(d, -o.ClampIn)
		p := math.Exp(-x)
		raw, slope = math.Expm1(-x)+x, -math.Expm1(-x)
		errValue = float64(math.Abs(slope)*e) + float64(p*(2*u32+float64(e*e))) + float64(u32*(math.Abs(p+x)+math.Abs(raw)))
		errGrad = p * (e + 2*u32)
	}
	if math.Abs(value) >= o.ClampOut && math.Abs(raw) > o.ClampOut+errValue {
		errValue = 0 // the bound itself
	}
	if o.Grad == rl.KLStraightThroughK2 {
		half := float64(d*d) / 2 * w
		errGrad = float64(w*e) + float64(math.Abs(d)*errW) + float64(2*u32*math.Abs(d*w))
		errValue += 2 * u32 * (half + math.Abs(value))
		return errValue, errGrad + float64(u32*math.Abs(grad))
	}
	near := math.Abs(math.Abs(raw)-o.ClampOut) <= errValue || o.ClampIn > 0 && math.Abs(d+o.ClampIn) <= e
	if near {
		errGrad += math.Abs(slope)
	}
	return errValue, errGrad + float64(u32*math.Abs(grad))
}
