package optim

import "math"

// Decay is the course of the learning rate after the warm-up.
type Decay int

const (
	Constant Decay = iota
	Linear         // to 0 at Total
	Cosine         // half a cosine to MinLR at Total; MinLR 0 is transformers' "cosine", else "cosine_with_min_lr"
)

// Schedule is a learning rate over the steps of a run.
type Schedule struct {
	Decay  Decay
	LR     float64 // after the warm-up
	MinLR  float64 // of Cosine
	Warmup int     // steps from 0 to LR
	Total  int     // steps of the run, warm-up included

	// Rebound lets a cosine rise again after Total, as transformers@5.23.0 does; otherwise MinLR is held.
	Rebound bool
}

// At returns the learning rate of step 0, 1, …:
//
//	step < Warmup    LR·step/max(1, Warmup)
//	Linear           LR·max(0, (Total − step)/max(1, Total − Warmup))
//	Cosine           MinLR + (LR − MinLR)·½(1 + cos π·x),  x = (step − Warmup)/max(1, Total − Warmup)
//
// It is transformers.optimization@5.23.0: get_constant_schedule_with_warmup, get_linear_schedule_with_warmup,
// get_cosine_schedule_with_warmup and get_cosine_with_min_lr_schedule_with_warmup, whose factor is
// ½(1 + cos π·x)·(1 − MinLR/LR) + MinLR/LR.
func (s Schedule) At(step int) float64 {
	if step < s.Warmup {
		return s.LR * float64(step) / float64(max(1, s.Warmup))
	}
	span := float64(max(1, s.Total-s.Warmup))
	switch s.Decay {
	case Linear:
		return s.LR * max(0, float64(s.Total-step)/span)
	case Cosine:
		x := float64(step-s.Warmup) / span
		if x > 1 && !s.Rebound {
			return s.MinLR
		}
		half := 0.5 * (1 + cosPi(x))
		return s.MinLR + float64((s.LR-s.MinLR)*half)
	}
	return s.LR
}

// cosPi returns cos(πx). math.Cos has other bits where the compiler fuses products into sums; here every product is rounded.
func cosPi(x float64) float64 {
	x = math.Mod(math.Abs(x), 2)
	if x > 1 {
		x = 2 - x
	}
	if x > 0.5 {
		return -cosPi(1 - x)
	}
	// The series in y² ≤ (π/4)² from its small end, 1 − y²/(k(k+1))·(1 − …); the first term left out is below 1e-17.
	if x > 0.25 {
		y, r := math.Pi*(0.5-x), 1.0
		for k := 16.0; k > 0; k -= 2 {
			r = 1 - float64(float64(y*y)*r)/(k*(k+1))
		}
		return float64(y * r)
	}
	y, r := math.Pi*x, 1.0
	for k := 17.0; k > 0; k -= 2 {
		r = 1 - float64(float64(y*y)*r)/(k*(k+1))
	}
	return r
}
