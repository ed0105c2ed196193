package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// loggedRewards collects the implicit rewards that a run of preferences logs, which are β times log-ratios whatever its loss is: the mean log-ratio of the
// chosen or the rejected answers of a file, and what was logged of them.
type loggedRewards [][2]float64

// add takes the files of a batch.
func (l *loggedRewards) add(b *dump.Batch) {
	for _, of := range []string{"chosen", "rejected"} {
		policy, reference := b.Row("logp_"+of), b.Row("ref_"+of)
		if policy == nil || reference == nil {
			continue
		}
		for _, file := range b.Files {
			for _, x := range file.Scalars {
				if x.Name != "rewards/"+of && !slices.ContainsFunc(rewardNames(of), func(a alias) bool { return a.name == x.Name }) {
					continue
				}
				var mean float64
				for i := file.Lo; i < file.Hi; i++ {
					mean += (policy[i] - reference[i]) / float64(file.Hi-file.Lo)
				}
				*l = append(*l, [2]float64{mean, x.Value})
			}
		}
	}
}

// coefficients returns β by least squares: nil of fewer than four rewards, or where they are no multiple of the log-ratios to 1e-5 of the largest.
func (l loggedRewards) coefficients() map[string]float64 {
	var num, den, size float64
	for _, x := range l {
		num, den, size = num+float64(x[0]*x[1]), den+float64(x[0]*x[0]), max(size, math.Abs(x[1]))
	}
	beta := written(num/den, 1e-4)
	if len(l) < 4 || !(beta > 0) || math.IsInf(beta, 0) {
		return nil
	}
	for _, x := range l {
		if !(math.Abs(x[1]-beta*x[0]) <= (1e-5+4*tol.U32)*size) {
			return nil
		}
	}
	return map[string]float64{"dpo.beta": beta}
}

// LogsBeta reports whether a batch logs implicit rewards, all of them β times its log-ratios: TRL 1.16 DPOTrainer logs
// β·(logp − ref) of the β that its loss has.
func LogsBeta(b *dump.Batch, beta float64) bool {
	var l loggedRewards
	l.add(b)
	var size float64
	for _, x := range l {
		size = max(size, math.Abs(x[1]))
	}
	return len(l) > 1 && !slices.ContainsFunc(l, func(x [2]float64) bool { return !(math.Abs(x[1]-beta*x[0]) <= (1e-5+4*tol.U32)*size) })
}
