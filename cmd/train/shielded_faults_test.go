package main

// planted are faults of systems A and of the catalogue, planted in the source: id, file, what stands there, what is put there, and
// the tests that must fail.
var planted = []struct{ id, file, old, new, pkg, tests string }{
	{"A2: the projection forgets the components of the last column", "internal/train/shielded_shield.go", "for j := range s.K {\n\t\trow, to", "for j := range s.K - 1 {\n\t\trow, to", "internal/train", "TestShield"},
	{"A3: kl_beta is not multiplied", "internal/train/shielded.go", "KLBeta: r.KLBeta, Agg: agg}", "KLBeta: 1, Agg: agg}", "internal/train", "TestShieldedFormulas"},
	{"A5: the sign of the projection", "internal/train/shielded_shield.go", "to[l] -= float64(q * w)", "to[l] += float64(q * w)", "internal/train", "TestShield"},
	{"A5: max without the norm", "internal/train/shielded_shield.go", "top / max(1, math.Sqrt(norm))", "top", "internal/train", "TestShieldHandVectors"},
	{"A8: the state of the optimiser is lost", "internal/train/run.go", "append(files, r.optimizer.File(), r.state.file())", "append(files, r.state.file())", "internal/train", "TestShieldedCheckpoint|TestShieldedResume"},
	{"A10: the flow is printed after the gradient is gone", "internal/train/shielded_shield.go", "sum += math.Abs(v)", "sum += math.Abs(0 * v)", "internal/train", "TestShieldedFirstUpdate"},
	{"A: ddof 1", "internal/train/shielded.go", "Var: rl.VarOptions{Single", "Var: rl.VarOptions{DDof: 1, Single", "internal/train", "TestShieldedFormulas"},
	{"A: equal rewards are divided", "internal/train/shielded.go", "Remask: true, ConstantZero: true", "Remask: true", "internal/train", "TestShieldedEqualRewards"},
	{"A: no baseline", "internal/train/shielded.go", "a.adv = rl.Broadcast(nil, white,", "copy(white, a.scores)\n\ta.adv = rl.Broadcast(nil, white,", "internal/train", "TestShieldedFormulas|TestShieldedEqualRewards"},
	{"A: each micro-batch has its own denominator", "internal/train/shielded.go", "Denominator: rl.AggRank, ", "", "internal/train", "TestShieldedMicroBatches|TestShieldedFormulas"},
	{"A: the KL is against the policy of the rollout", "internal/train/shielded.go", "Ref: pick(a.ref,", "Ref: pick(a.old,", "internal/train", "TestShieldedFirstUpdate"},
	{"A: the clip is at twice its range", "internal/train/shielded.go", "Low: r.ClipEps, High: r.ClipEps}", "Low: 2 * r.ClipEps, High: 2 * r.ClipEps}", "internal/train", "TestShieldedFormulas"},
	{"A: gradients are not forgotten", "internal/train/optimizer.go", "\t\tclear(grads[i])\n", "\t\t_ = grads[i]\n", "internal/train", "TestShieldedForgets"},
	{"A: weights between the steps are not those of the file", "internal/train/optimizer.go", "\t\tround(p.Data)\n", "", "internal/train", "TestShieldedResume"},
	{"H1: the old log-probabilities are zeros", "internal/train/shielded.go", "a.gen, a.old, a.ref = padded(gen, cols), now.LogProbs, ref", "a.gen, a.old, a.ref = padded(gen, cols), make([]float64, len(now.LogProbs)), ref", "internal/train", "TestShieldedFirstUpdate"},
	{"H2: the projection does nothing", "internal/train/shielded_shield.go", "\t\tb.scatter(v, x)\n", "", "internal/train", "TestShieldedDrift"},
	{"H3a: a copy of the update is projected", "internal/train/optimizer.go", "u.Shield.project(out, add, ProjectUpdate)", "u.Shield.project(out, deepClone(add), ProjectUpdate)", "internal/train", "TestShieldedDrift"},
	{"H3b: the drift is of the weights, not of their change", "internal/train/shielded_shield.go", "w-s.Initial[i][j]", "w-0*s.Initial[i][j]", "internal/train", "TestShieldedDrift"},
	{"H4a: only the first target is looked at", "cmd/train/shielded.go", "for _, t := range c.LoRA.Targets {", "for _, t := range c.LoRA.Targets[:1] {", "cmd/train", "TestShieldedRefuses"},
	{"H4b: a basis of the whole space passes", "internal/train/shielded_basis.go", "case b.K >= b.D:", "case b.K > b.D:", "internal/train", "TestReadBasisRefuses"},
	{"A.4: the tolerance is absolute", "internal/train/shielded_span.go", "s[k] > spanTolerance*s[0]", "s[k] > spanTolerance", "internal/train", "TestNewBasis"},
	{"A6: int8 spread over devices starts", "internal/train/shielded_config.go", "if c.GPUs > 1 {", "if c.GPUs > 100 {", "cmd/train", "TestShieldedRefuses"},
}
