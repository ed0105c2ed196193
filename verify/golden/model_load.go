package golden

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/format/peft"
	"plumbline/internal/format/safetensors"
)

// modelFolder is a model with its adapter, if it has one.
type modelFolder struct {
	name    string // of the folder
	file    string // golden.json, for messages
	config  *hf.Config
	weights *safetensors.File
	adapter *peft.Adapter // nil if there is none
	biases  []peft.Tensor // of the base, that were trained with the adapter; Module is the name of the base's tensor

	computed map[string]map[string][]float64 // outputs of the reference, by what they were computed from
}

// modelFile is golden.json beside a model.
type modelFile struct {
	Attention string
	Versions  map[string]string
	NaNRows   []any // rows of hf_double that are NaN
	Reward    any   // that a policy's loss is computed from
	Tensors   map[string]declared
}

// declared is what golden.json says of a tensor.
type declared struct {
	dtype string
	shape []int
}

// model reads the goldens of a model: golden.json, the tensors it lists, the model in base and its adapter. Each group of
// tensors, which is what stands before the slash in their names, is an entry; those without a group are its inputs.
func (l *loader) model(f *File) error {
	folder := path.Dir(f.Name)
	text, err := l.read(f)
	if err != nil {
		return err
	}
	m := &modelFolder{name: path.Base(folder), file: l.shown(f.Name), computed: map[string]map[string][]float64{}}
	if folder == "." {
		m.name = path.Base(path.Clean(strings.ReplaceAll(l.at, "\\", "/")))
	}
	about, err := readModel(m.file, text)
	if err != nil {
		return err
	}
	values, err := l.tensors(m.file, path.Join(folder, "golden.safetensors"))
	if err != nil {
		return err
	}
	if text, err = l.part(m.file, path.Join(folder, "base", "config.json")); err != nil {
		return err
	}
	if m.config, err = hf.ParseConfig(l.shown(path.Join(folder, "base", "config.json")), text); err != nil {
		return err
	}
	if m.weights, err = l.weights(m.file, path.Join(folder, "base", "model.safetensors")); err != nil {
		return err
	}
	if l.has(path.Join(folder, "adapter", peft.ConfigFile)) {
		if err := l.adapter(m, path.Join(folder, "adapter")); err != nil {
			return err
		}
	}
	return l.entries(f.Name, m, about, values)
}

// part returns the content of a file that file needs.
func (l *loader) part(file, name string) ([]byte, error) {
	f := l.find(name)
	if f == nil {
		return nil, format.Malformed(file, "", "%s is missing", l.shown(name))
	}
	return l.read(f)
}

func (l *loader) weights(file, name string) (*safetensors.File, error) {
	content, err := l.part(file, name)
	if err != nil {
		return nil, err
	}
	return safetensors.ParseAt(bytes.NewReader(content), int64(len(content)), l.shown(name))
}

// adapter reads the adapter in folder.
func (l *loader) adapter(m *modelFolder, folder string) error {
	text, err := l.part(m.file, path.Join(folder, peft.ConfigFile))
	if err != nil {
		return err
	}
	a := &peft.Adapter{Path: l.shown(folder)}
	if a.Config, a.Notes, err = peft.ParseConfig(l.shown(path.Join(folder, peft.ConfigFile)), text); err != nil {
		return err
	}
	w, err := l.weights(m.file, path.Join(folder, peft.WeightsFile))
	if err != nil {
		return err
	}
	for key, array := range w.Tensors() {
		t := peft.Tensor{Key: key, Array: array}
		for kind, suffix := range map[peft.Kind]string{peft.A: ".lora_A.weight", peft.B: ".lora_B.weight"} {
			if layer, ok := strings.CutSuffix(strings.TrimPrefix(key, "base_model.model."), suffix); ok && strings.HasPrefix(key, "base_model.model.") {
				t.Kind, t.Module = kind, layer
			}
		}
		if name, ok := strings.CutPrefix(key, "base_model.model."); ok && a.Config.Bias != "none" && t.Kind == peft.Unknown && strings.HasSuffix(key, ".bias") {
			t.Kind, t.Module = peft.Saved, strings.Replace(name, ".base_layer.", ".", 1)
			m.biases = append(m.biases, t)
			continue
		}
		a.Tensors = append(a.Tensors, t)
	}
	slices.SortFunc(a.Tensors, func(x, y peft.Tensor) int { return strings.Compare(x.Key, y.Key) })
	m.adapter = a
	return nil
}

// entries adds an entry for each group of tensors.
func (l *loader) entries(name string, m *modelFolder, about *modelFile, values *tensorFile) error {
	peer, function := "torch", m.config.Type
	if v := m.config.Architectures; len(v) > 0 {
		peer, function = "transformers", v[0]
	}
	inputs, groups := map[string]*Value{}, map[string]*Entry{}
	var order []string
	for stored := range values.file.Tensors() {
		d, ok := about.Tensors[stored]
		if !ok {
			return format.Malformed(m.file, "tensors", "does not list %.64q of %s", stored, values.file.Path)
		}
		v := &Value{Tensor: stored, Declared: d.dtype, Shape: d.shape}
		if err := values.fill(v); err != nil {
			return format.Malformed(m.file, "tensors", "%v", err)
		}
		group, output, grouped := strings.Cut(stored, "/")
		if strings.HasPrefix(stored, "predictions_") {
			group, output, grouped = "float64", stored, true
		}
		if !grouped {
			inputs[stored] = v
			continue
		}
		if groups[group] == nil {
			groups[group] = &Entry{ID: "models/" + m.name + "/" + group, Case: group, Peer: peer, Version: about.Versions[peer], Function: function,
				File: m.file, Options: map[string]any{"attention": about.Attention, "nan_rows": about.NaNRows, "reward": about.Reward}, In: inputs, Out: map[string]*Value{}, model: m}
			order = append(order, group)
		}
		groups[group].Out[output] = v
	}
	if len(about.Tensors) != values.file.Len() {
		return format.Malformed(m.file, "tensors", "lists %d, %s holds %d", len(about.Tensors), values.file.Path, values.file.Len())
	}
	s := l.set.Sections[models.name]
	if s == nil {
		s = &Section{Name: models.name, File: name}
		l.set.Sections[models.name] = s
	}
	slices.Sort(order)
	for _, group := range order {
		e := groups[group]
		if slices.ContainsFunc(s.Entries, func(o *Entry) bool { return o.ID == e.ID }) {
			return format.Malformed(m.file, "", "is a second model called %.64q", m.name)
		}
		s.Entries = append(s.Entries, e)
	}
	return nil
}

// readModel reads golden.json.
func readModel(file string, text []byte) (*modelFile, error) {
	m := &modelFile{Versions: map[string]string{}, Tensors: map[string]declared{}}
	j := format.NewScanner(file, text, 0)
	err := j.Document(func(key string) (err error) {
		switch key {
		case "attention":
			m.Attention, err = j.String()
		case "versions":
			err = j.Object(func(name string) (err error) {
				m.Versions[name], err = j.String()
				return err
			})
		case "hf_double_nan_rows":
			err = j.Array(func(int) error {
				row, err := j.Int()
				m.NaNRows = append(m.NaNRows, float64(row))
				return err
			})
		case "spec":
			err = j.Object(func(name string) (err error) {
				if name == "reward" {
					m.Reward, err = j.Value()
					return err
				}
				return j.Skip()
			})
		case "tensors":
			err = j.Object(func(name string) error {
				var d declared
				err := j.Array(func(i int) (err error) {
					switch i {
					case 0:
						d.dtype, err = j.String()
					case 1:
						d.shape, err = readShape(j)
					default:
						err = j.Malformed("%s: more than a type and a shape", short(name))
					}
					return err
				})
				if err == nil && d.shape == nil {
					err = j.Malformed("%s: want a type and a shape", short(name))
				}
				m.Tensors[name] = d
				return err
			})
		default:
			err = j.Skip()
		}
		return err
	})
	return m, err
}

// readShape reads a list of sizes.
func readShape(j *format.Scanner) ([]int, error) {
	shape := []int{}
	err := j.Array(func(int) error {
		d, err := j.Int()
		shape = append(shape, int(d))
		return err
	})
	return shape, err
}
