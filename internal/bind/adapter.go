package bind

import (
	"bytes"
	"io"

	"plumbline/internal/format"
	"plumbline/internal/format/peft"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/model"
)

// AdapterConfig is what adapter_config.json says of the adapter of a run; base is the name of the base model.
func AdapterConfig(base string, l train.LoRA) peft.Config {
	return peft.Config{BaseModel: base, TaskType: "CAUSAL_LM", R: l.R, Alpha: l.Alpha, Bias: "none", Targets: peft.Targets{List: l.Targets}}
}

// adapterFiles returns an adapter as PEFT reads it: adapter_config.json and adapter_model.safetensors, which names the base by its
// fingerprint.
func adapterFiles(c model.Config, config peft.Config, a model.Adapter, fingerprint string) ([]rundir.File, error) {
	contents := peft.Contents{DType: format.F32, Config: config, Fingerprint: fingerprint}
	for _, t := range c.Linears() {
		if f, ok := a[t.Name]; ok {
			contents.Factors = append(contents.Factors, peft.Factors{Path: t.Name, In: t.Shape[1], Out: t.Shape[0], A: f.A, B: f.B})
		}
	}
	text, weights, err := contents.Encode()
	if err != nil {
		return nil, err
	}
	return []rundir.File{
		{Name: peft.ConfigFile, Write: func(w io.Writer) error { _, err := io.Copy(w, bytes.NewReader(text)); return err }},
		{Name: peft.WeightsFile, Write: weights},
	}, nil
}
