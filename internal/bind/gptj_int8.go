package bind

import (
	"fmt"
	"strings"

	"plumbline/reference/model"
	"plumbline/reference/quant"
)

// Int8Base replaces the weights of the linear layers in the blocks of m by what int8 codes with one scale for each row stand for, as
// a model that is loaded with load_in_8bit computes with them, and returns the codes by the names of the layers. Embeddings, norms,
// biases and the head stay. The numbers are those of quant.Quantize from float16, dequantised by 1/127 rounded to float32:
// bitsandbytes@0.50.2 int8_vectorwise_quant and int8_vectorwise_dequant.
//
// It is an error for GPT-2, whose layers store their weights transposed.
func Int8Base(m *model.Model) (map[string]*quant.Int8, error) {
	if m.Config.Kind == model.GPT2 {
		return nil, fmt.Errorf("int8: the layers of %s store [in, out]; only those with rows of outputs are quantised", m.Config.Kind)
	}
	codes := map[string]*quant.Int8{}
	for _, t := range m.Config.Linears() {
		if !strings.Contains(t.Name, ".") { // lm_head
			continue
		}
		w := m.Data(t.Name + ".weight")
		q := quant.Quantize(w, t.Shape[0], t.Shape[1], quant.Float16)
		q.Dequantize(w, quant.Inv127Float32)
		codes[t.Name] = q
	}
	return codes, nil
}

// Embeddings returns those of a model's tokens, [V, C].
func Embeddings(m *model.Model) []float64 {
	name := "model.embed_tokens.weight"
	if m.Config.Kind == model.GPT2 || m.Config.Kind == model.GPTJ {
		name = "transformer.wte.weight"
	}
	return m.Data(name)
}
