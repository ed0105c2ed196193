package ad

import (
	"fmt"
	"slices"
)

// Backward adds Jᵀ·ȳ to the gradient of every parameter that y depends on,
// where J is the Jacobian of y with respect to that parameter and the
// cotangent ȳ has one number per element of y. For a scalar loss L the
// cotangent {1} gives ∂L/∂x.
//
// The tape is walked in the reverse order of recording, so the result does not
// depend on anything but the program that recorded it. Backward may be called
// again, for the same or another y; gradients add up until [Var.ZeroGrad].
//
// It panics if the cotangent has another length than y, or if y depends on no
// parameter.
func Backward(y *Var, cotangent []float64) {
	if len(cotangent) != len(y.data) {
		panic(fmt.Sprintf("ad: backward: a cotangent of %d elements for shape %v", len(cotangent), y.shape))
	}
	if !y.needs {
		panic("ad: backward: " + y.op + " depends on no parameter")
	}
	for id, dy := range adjoints(y, cotangent) {
		if v := y.tape.nodes[id]; v.op == "param" {
			for i, d := range dy {
				v.grad[i] += d
			}
		}
	}
}

// adjoints returns v̄ = (∂y/∂v)ᵀ·ȳ for every node v up to y, by its id; nil
// where y does not depend on v.
func adjoints(y *Var, cotangent []float64) [][]float64 {
	if !y.needs {
		return nil
	}
	adj := make([][]float64, y.id+1)
	adj[y.id] = slices.Clone(cotangent)
	for id := y.id; id >= 0; id-- {
		v := y.tape.nodes[id]
		if adj[id] == nil || v.vjp == nil {
			continue
		}
		dx := make([][]float64, len(v.in))
		for k, x := range v.in {
			if !x.needs {
				continue
			}
			if adj[x.id] == nil {
				adj[x.id] = make([]float64, len(x.data))
			}
			dx[k] = adj[x.id]
		}
		v.vjp(adj[id], dx)
	}
	return adj
}

// JVP returns the tangent ẏ = Σ_k J_k·ẋ_k of y, where J_k is the Jacobian of y
// with respect to the parameter x[k] and dx[k] its tangent. Parameters that are
// not listed keep the tangent 0. It replays the tape forwards and leaves no
// trace on it.
//
// It panics if x and dx differ in length, if an x[k] is not a parameter of the
// tape of y, or if dx[k] does not have the length of x[k].
func JVP(y *Var, x []*Var, dx [][]float64) []float64 {
	if len(x) != len(dx) {
		panic(fmt.Sprintf("ad: jvp: %d parameters, %d tangents", len(x), len(dx)))
	}
	for k, p := range x {
		if p.op != "param" || p.tape != y.tape {
			panic(fmt.Sprintf("ad: jvp: argument %d is not a parameter of this tape", k))
		}
		if len(dx[k]) != len(p.data) {
			panic(fmt.Sprintf("ad: jvp: a tangent of %d elements for shape %v", len(dx[k]), p.shape))
		}
	}
	if tan := tangents(y, x, dx); tan != nil && tan[y.id] != nil {
		return tan[y.id]
	}
	return make([]float64, len(y.data))
}

// tangents returns v̇ for every node v up to y, by its id; nil where v depends
// on no parameter in x.
func tangents(y *Var, x []*Var, dx [][]float64) [][]float64 {
	if !y.needs {
		return nil
	}
	tan := make([][]float64, y.id+1)
	for k, p := range x {
		switch {
		case p.id > y.id: // recorded after y
		case tan[p.id] == nil:
			tan[p.id] = slices.Clone(dx[k])
		default:
			for i, d := range dx[k] {
				tan[p.id][i] += d
			}
		}
	}
	for id := range tan {
		v := y.tape.nodes[id]
		if v.jvp == nil {
			continue
		}
		in, any := make([][]float64, len(v.in)), false
		for k, x := range v.in {
			if x.needs {
				in[k] = tan[x.id]
				any = any || in[k] != nil
			}
		}
		if any {
			tan[id] = make([]float64, len(v.data))
			v.jvp(in, tan[id])
		}
	}
	return tan
}
