package projection

import (
	"fmt"
	"math"
	"strings"

	"plumbline/verify/check"
)

// Flow checks that gradients reach the trainable tensors.
var Flow = &check.Check[*Input]{
	Name: "gradient/flow",
	Doc: `a gradient reaches every trainable tensor: mean|g| of each is not 0

mean|g| of every tensor, and min, max and mean of these. With an adapter, its tensors are the trainable set and one
without a gradient counts as 0. A lora_A gradient of exactly 0 is healthy while its lora_B is 0, as at the first step.`,
	Source: source + ", section Gradient Flow Check; fault A10",
	Fix:    "set requires_grad on the adapter, and look for a detach or a no_grad between it and the loss",
	Run: func(in *Input) ([]check.Result, error) {
		var out []check.Result
		for _, g := range in.Grads {
			flow := FlowOf(g, in.Adapter)
			r := check.Result{Subject: g.Name, Verdict: check.Pass, Metric: "tensors without gradient", Compared: len(flow.Mean), Reason: flow.String()}
			var dead, young []string // without gradient: for no good reason; because lora_B is still 0
			first := firstStep(flow, in.Adapter)
			for i, m := range flow.Mean {
				if m > 0 || math.IsNaN(m) {
					continue // NaN is the business of vectors/finite
				}
				name := flow.Name[i]
				if strings.Contains(name, "lora_A") && first(name) {
					young = append(young, name)
				} else {
					dead = append(dead, name)
				}
			}
			r.Measured = float64(len(dead))
			switch {
			case len(flow.Mean) == 0:
				r.Verdict, r.Reason = check.Fail, "no trainable parameters"
				r.Metric, r.Explanations = "", []check.Explanation{{Fault: "A10", Title: "nothing is trainable"}}
			case len(dead) == len(flow.Mean):
				r.Verdict = check.Fail
				r.Reason = fmt.Sprintf("the gradient is exactly 0 everywhere (%s)", flow)
				r.Explanations = []check.Explanation{{Fault: "A10", Title: "no gradient flows: frozen parameters or a detached graph"}}
			case len(dead) > 0:
				r.Verdict = check.Fail
				r.Reason = fmt.Sprintf("%d of %d tensors have no gradient, the first: %s (%s)", len(dead), len(flow.Mean), dead[0], flow)
				r.Explanations = []check.Explanation{{Fault: "A10", Title: "a trainable tensor without gradient"}}
			case len(young) > 0:
				r.Reason = fmt.Sprintf("%s; %d lora_A gradients are 0, as they must be while lora_B is 0", flow, len(young))
			}
			out = append(out, r)
		}
		return out, nil
	},
}

// GradientFlow is mean|g| of each trainable tensor.
type GradientFlow struct {
	Name []string
	Mean []float64
}

// FlowOf returns the flow of the gradients in g. With an adapter its LoRA tensors are the trainable set: one that g lacks
// counts as 0. Names are matched after dropping the prefix that PEFT's files and modules differ in; a single vector as long
// as all of them together is cut at their lengths.
func FlowOf(g Set, adapter *Set) GradientFlow {
	var f GradientFlow
	add := func(name string, x []float64) {
		var s float64
		for _, v := range x {
			s += math.Abs(v)
		}
		f.Name = append(f.Name, name)
		f.Mean = append(f.Mean, s/float64(max(1, len(x))))
	}
	if adapter == nil {
		for _, t := range g.floats() {
			add(t.Name, t.Data)
		}
		return f
	}
	trainable := loraOnly(adapter.floats())
	byName := map[string][]float64{}
	for _, t := range g.Tensors {
		byName[trainableName(t.Name)] = t.Data
	}
	if flat := flatOf(g, trainable); flat != nil {
		for _, t := range trainable {
			byName[trainableName(t.Name)], flat = flat[:len(t.Data)], flat[len(t.Data):]
		}
	}
	for _, t := range trainable {
		add(t.Name, byName[trainableName(t.Name)])
	}
	return f
}

// flatOf returns the one vector of g if it holds the gradients of all trainable tensors in a row.
func flatOf(g Set, trainable []Tensor) []float64 {
	total := 0
	for _, t := range trainable {
		total += len(t.Data)
	}
	if len(g.Tensors) == 1 && len(trainable) > 1 && len(g.Tensors[0].Data) == total {
		return g.Tensors[0].Data
	}
	return nil
}

// trainableName drops what differs between the name of a parameter in a PEFT model and in its saved adapter.
func trainableName(n string) string {
	n = strings.TrimPrefix(n, "grad/")
	n = strings.TrimPrefix(n, "base_model.model.")
	return strings.Replace(n, ".default.weight", ".weight", 1)
}

// String formats the flow as the source does.
func (f GradientFlow) String() string {
	lo, hi, sum := math.Inf(1), 0.0, 0.0
	for _, m := range f.Mean {
		lo, hi, sum = min(lo, m), max(hi, m), sum+m
	}
	if len(f.Mean) == 0 {
		return "no trainable parameters"
	}
	return fmt.Sprintf("Gradient flow: min=%.6f, max=%.6f, mean=%.6f", lo, hi, sum/float64(len(f.Mean)))
}

// firstStep returns a function that reports whether the lora_B beside a lora_A is still 0: then the gradient of lora_A is
// Bᵀ·…, exactly 0. Without an adapter it goes by the gradients: at the first step every lora_A has none and every lora_B
// has one.
func firstStep(flow GradientFlow, adapter *Set) func(loraA string) bool {
	if adapter == nil {
		young := true
		for i, name := range flow.Name {
			young = young && strings.Contains(name, "lora_A") == (flow.Mean[i] == 0)
		}
		return func(string) bool { return young }
	}
	zero := map[string]bool{}
	for _, t := range adapter.Tensors {
		zero[trainableName(t.Name)] = maxAbs(t.Data) == 0
	}
	return func(loraA string) bool { return zero[strings.Replace(trainableName(loraA), "lora_A", "lora_B", 1)] }
}
