package model_test

import (
	"fmt"

	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/nn"
)

// A tiny Llama whose weights are all 1/8, with an adapter at the values of its only layer.
func Example() {
	config := model.Config{
		Kind: model.Llama, Vocab: 5, Hidden: 4, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 2, Intermediate: 3, MaxPositions: 8,
		Eps: 1e-5, Activation: "silu", Tied: true, RoPE: nn.RoPE{Dim: 2, Theta: 10000},
	}
	weights := func(name string, shape ...int) ([]float64, error) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		w := make([]float64, n)
		for i := range w {
			w[i] = 0.125
		}
		return w, nil
	}
	m, err := model.New(config, weights)
	if err != nil {
		fmt.Println(err)
		return
	}
	adapter := model.Adapter{"model.layers.0.self_attn.v_proj": {
		Rank: 1, A: []float64{1, 0, 0, 0}, B: []float64{0, 0}, Scale: nn.LoRAScale(16, 1, false),
	}}

	var tape ad.Tape
	n := m.On(&tape, model.Trainable{Adapter: adapter, LoRA: true})
	in := model.Input{Batch: 1, Time: 3, IDs: []int{1, 4, 2}}
	out := n.Forward(in)
	last := n.Logits(ad.Slice(out.Hidden, 1, 2, 3))
	fmt.Println(out.Hidden.Shape(), last.Shape())

	lp := n.MeanLogProb(in)
	ad.Backward(lp, []float64{1})
	factors, _ := n.Factors("model.layers.0.self_attn.v_proj")
	fmt.Printf("%.4f, a gradient for A: %v\n", lp.Item(), factors.A.Grad())
	// Output:
	// [1 3 4] [1 1 5]
	// -1.6094, a gradient for A: [0 0 0 0]
}

// Decoding one token at a time gives the bits of the whole sequence.
func ExampleCache() {
	config := model.Config{
		Kind: model.GPT2, Vocab: 3, Hidden: 2, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 2, Intermediate: 2, MaxPositions: 4,
		Eps: 1e-5, Activation: "gelu_new", Tied: true, QKVBias: true, OutputBias: true, MLPBias: true,
	}
	m, err := model.New(config, func(name string, shape ...int) ([]float64, error) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		w := make([]float64, n)
		for i := range w {
			w[i] = float64((i+len(name))%7-3) / 4
		}
		return w, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var tape ad.Tape
	n := m.On(&tape, model.Trainable{})
	whole := n.Forward(model.Input{Batch: 1, Time: 2, IDs: []int{2, 0}}).Hidden.Data()

	var cache model.Cache
	for t, id := range []int{2, 0} {
		step := n.Forward(model.Input{Batch: 1, Time: 1, IDs: []int{id}, Cache: &cache}).Hidden.Data()
		fmt.Println(step[0] == whole[2*t], step[1] == whole[2*t+1], cache.Len())
	}
	// Output:
	// true true 1
	// true true 2
}
