package model_test

import (
	"fmt"

	"plumbline/reference/ad"
	"plumbline/reference/model"
)

// Weights of zero give every token the same probability: two masked tokens of a vocabulary of 8 have the log-probability
// −2·ln 8, whatever they are filled with. The gradient is taken of the weights that are asked for.
func ExampleMaskedNet_SequenceLogProb() {
	config := model.MaskedGPTConfig{Mode: model.LanguageModel, Vocab: 8, Hidden: 4, Layers: 1, Heads: 2, MaxPositions: 16, Mask: 6, Pad: 7}
	m, err := model.NewMaskedGPT(config, func(_ string, shape ...int) ([]float64, error) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return make([]float64, n), nil
	})
	if err != nil {
		panic(err)
	}
	var tape ad.Tape
	n := m.On(&tape, func(name string) bool { return name == "transformer.wte.weight" })
	s := n.SequenceLogProb(model.Input{Batch: 1, Time: 3, IDs: []int{6, 2, 6}}, []int{1, 2, 3})
	ad.Backward(s, []float64{1})
	fmt.Printf("%.4f %d\n", s.Data(), len(n.Var("transformer.wte.weight").Grad()))
	// Output:
	// [-4.1589] 32
}
