package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// besideLosses collects, of files that have all three, the loss, the mean of the losses of its pairs, the cross-entropy beside it, and the
// accumulation steps that the loss may be divided by.
type besideLosses struct {
	loss, mean, nll, steps []float64
	unit                   float64 // of the coarsest
}

// add takes the files of a batch.
func (p *besideLosses) add(b *dump.Batch) {
	each, loss, nll := b.Row("pair_loss"), b.PerFile("loss"), b.PerFile("nll_loss")
	if len(each) != b.Rows || loss == nil || nll == nil || len(b.Missing) > 0 {
		return
	}
	steps := max(float64(b.Meta.MicroBatches), 1)
	for f, file := range b.Files {
		var sum float64
		for _, x := range each[file.Lo:file.Hi] {
			sum += x
		}
		p.loss, p.mean, p.nll, p.steps = append(p.loss, loss[f]), append(p.mean, sum/float64(file.Hi-file.Lo)), append(p.nll, nll[f]), append(p.steps, steps)
	}
	p.unit = max(p.unit, Grid(loss), Grid(each), Grid(nll), tol.U32)
}

// weight solves s·loss = mean + w·nll for w by least squares over the files, s being 1 or the accumulation steps (TRL 1.16, DPOTrainer._compute_loss:
// the cross-entropy of "sft" times its weight, which the loop divides by the steps like the rest). It is 0 where fewer than three files are there, or
// some leave more than 8 units of the largest loss, or as much as a 64th of the term.
func (p *besideLosses) weight() float64 {
	const least = 3
	if len(p.loss) < least {
		return 0
	}
	for _, divided := range []bool{false, true} {
		var num, den, size, left float64
		smallest := math.Inf(1)
		of := func(f int) float64 {
			if divided {
				return p.steps[f]*p.loss[f] - p.mean[f]
			}
			return p.loss[f] - p.mean[f]
		}
		for f, x := range p.nll {
			num, den = num+float64(x*of(f)), den+float64(x*x)
			size, smallest = max(size, math.Abs(p.mean[f]), math.Abs(of(f)+p.mean[f])), min(smallest, math.Abs(x))
		}
		w := num / den
		for f, x := range p.nll {
			left = max(left, math.Abs(of(f)-float64(w*x)))
		}
		if off := 8 * p.unit * size; w > 0 && left <= off && 64*off <= w*smallest {
			return written(w, max(1e-4, off/(w*smallest)))
		}
	}
	return 0
}
