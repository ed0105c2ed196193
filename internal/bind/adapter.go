package bind

import (
	"io"
	"os"
	"path/filepath"

	"plumbline/internal/format"
	"plumbline/internal/format/peft"
	"plumbline/internal/rundir"
	"plumbline/reference/model"
)

// AdapterFiles returns what writes an adapter as PEFT reads it: adapter_config.json and adapter_model.safetensors. base is the name
// of the base model that they say.
func AdapterFiles(c model.Config, base string, r int, alpha float64, targets []string) func(model.Adapter) ([]rundir.File, error) {
	return func(a model.Adapter) ([]rundir.File, error) {
		contents := peft.Contents{DType: format.F32, Config: peft.Config{BaseModel: base, TaskType: "CAUSAL_LM", R: r, Alpha: alpha, Bias: "none",
			Targets: peft.Targets{List: targets}}}
		for _, t := range c.Linears() {
			if f, ok := a[t.Name]; ok {
				contents.Factors = append(contents.Factors, peft.Factors{Path: t.Name, In: t.Shape[1], Out: t.Shape[0], A: f.A, B: f.B})
			}
		}
		dir, err := os.MkdirTemp("", "plumbline-adapter-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if err := peft.Write(dir, contents); err != nil {
			return nil, err
		}
		var files []rundir.File
		for _, name := range []string{peft.ConfigFile, peft.WeightsFile} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			files = append(files, rundir.File{Name: name, Write: func(w io.Writer) error { _, err := w.Write(text); return err }})
		}
		return files, nil
	}
}
