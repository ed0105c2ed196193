package golden

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	data "plumbline/golden"
	"plumbline/internal/format"
	"plumbline/verify/check"
)

// openMap reads a folder in memory.
func openMap(folder fstest.MapFS) (*Set, error) {
	return load(context.Background(), "x", "x", folder, func(name string) (io.ReadCloser, int64, error) {
		content := folder[name].Data
		return io.NopCloser(bytes.NewReader(content)), int64(len(content)), nil
	})
}

// Broken models end in a finding or in an error that names the file and what is wrong in it. Nothing panics.
func TestHostileModels(t *testing.T) {
	swap := func(file, old, new string) func(fstest.MapFS) {
		return func(f fstest.MapFS) {
			before := string(f[file].Data)
			after := strings.Replace(before, old, new, 1)
			if before == after {
				panic(old + " is not in " + file)
			}
			f[file] = &fstest.MapFile{Data: []byte(after)}
		}
	}
	remove := func(file string) func(fstest.MapFS) { return func(f fstest.MapFS) { delete(f, file) } }
	cut := func(file string, n int) func(fstest.MapFS) {
		return func(f fstest.MapFS) { f[file] = &fstest.MapFile{Data: f[file].Data[:n]} }
	}
	const config, adapter = "gptj/base/config.json", "gptj/adapter/adapter_config.json"
	for _, c := range []struct {
		name   string
		change func(fstest.MapFS)
		want   check.Verdict // of a result; 0: an error
		text   []string      // in the error or the reason
	}{
		{"as it is", func(fstest.MapFS) {}, check.Pass, []string{"numbers"}},
		{"not JSON", swap("gptj/golden.json", "{", "["), 0, []string{"x/gptj/golden.json"}},
		{"no tensors", remove("gptj/golden.safetensors"), 0, []string{"gptj/golden.json", "golden.safetensors"}},
		{"no configuration", remove(config), 0, []string{"x/gptj/base/config.json is missing"}},
		{"no weights", remove("gptj/base/model.safetensors"), 0, []string{"x/gptj/base/model.safetensors is missing"}},
		{"cut weights", cut("gptj/base/model.safetensors", 5000), 0, []string{"x/gptj/base/model.safetensors"}},
		{"cut header", cut("gptj/golden.safetensors", 100), 0, []string{"x/gptj/golden.safetensors"}},
		{"adapter without weights", remove("gptj/adapter/adapter_model.safetensors"), 0, []string{"adapter_model.safetensors is missing"}},
		{"no adapter at all", func(f fstest.MapFS) {
			delete(f, "gptj/adapter/adapter_model.safetensors")
			delete(f, adapter)
		}, check.Undetermined, []string{"the reference has no output"}},
		{"a tensor of another type", swap("gptj/golden.json", "\"int64\"", "\"int32\""), 0, []string{"gptj/golden.json", "ids", "int32"}},
		{"a tensor that is not listed", swap("gptj/golden.json", "\"ids\": [", "\"idz\": ["), 0, []string{"does not list \"ids\""}},
		{"a shape that is none", swap("gptj/golden.json", "\"int64\",", "\"int64\" ], \"x\": [\"int64\","), 0, []string{"gptj/golden.json"}},
		{"another architecture", swap(config, "\"model_type\": \"gptj\"", "\"model_type\": \"mamba\""), check.Undetermined, []string{"\"mamba\" is not a supported architecture"}},
		{"another class", swap(config, "GPTJForCausalLM", "GPTJForSequenceClassification"), check.Undetermined, []string{"does not know this function"}},
		{"more layers than weights", swap(config, "\"n_layer\": 2", "\"n_layer\": 3"), 0, []string{"base/model.safetensors", "transformer.h.2.ln_1.weight", "models/gptj/"}},
		{"a layer less", swap(config, "\"n_layer\": 2", "\"n_layer\": 1"), 0, []string{"transformer.h.1", "adapter"}},
		{"another hidden size", swap(config, "\"n_embd\": 32", "\"n_embd\": 64"), 0, []string{"transformer."}},
		{"heads that do not divide", swap(config, "\"n_head\": 4", "\"n_head\": 5"), 0, []string{"config.json"}},
		{"a vocabulary beyond the embedding", swap(config, "\"vocab_size\": 61", "\"vocab_size\": 16000000"), check.Undetermined, []string{"too large to recompute"}},
		{"a smaller vocabulary than the ids", swap(config, "\"vocab_size\": 61", "\"vocab_size\": 6"), 0, []string{"input ids"}},
		{"an activation nobody knows", swap(config, "gelu_new", "cubic"), check.Undetermined, []string{"cubic"}},
		{"DoRA", swap(adapter, "\"use_dora\": false", "\"use_dora\": true"), check.Undetermined, []string{"use_dora of the adapter"}},
		{"biases of B", swap(adapter, "\"lora_bias\": false", "\"lora_bias\": true"), check.Undetermined, []string{"biases of B"}},
		{"another rank", swap(adapter, "\"r\": 4", "\"r\": 3"), 0, []string{"rank", "lora_A"}},
		{"other targets", swap(adapter, "\"v_proj\"", "\"k_proj\""), 0, []string{"v_proj", "no target"}},
		{"the goldens of another adapter", swap(adapter, "\"lora_alpha\": 8", "\"lora_alpha\": 9"), check.Fail, []string{"beyond their bound"}},
		{"two models of one name", func(f fstest.MapFS) {
			for name, file := range modelMap(t, "gptj") {
				f["again/"+name] = file
			}
		}, 0, []string{"is a second model called \"gptj\""}},
		{"a release that is not known", swap("gptj/golden.json", "\"transformers\": \"5.23.0\"", "\"transformers\": \"4.1.0\""), check.Pass, []string{"numbers"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := modelMap(t, "gptj")
			delete(folder, "gptj/manifest.json")
			c.change(folder)
			s, err := openMap(folder)
			var results []check.Result
			if err == nil {
				results, err = check.Suite[*Set]{Models, UnknownCheck}.Run(s, check.Selection{})
				err = errors.Join(err, s.Malformed())
			}
			found := ""
			if c.want == 0 {
				require.Error(t, err, "%v", results)
				require.True(t, format.IsMalformed(err), "%v", err)
				found = err.Error()
			} else {
				require.NoError(t, err)
				for _, r := range results {
					if r.Verdict == c.want {
						found += r.Reason + "\n"
					}
				}
			}
			for _, text := range c.text {
				require.Contains(t, found, text)
			}
		})
	}
}

// A manifest beside a model covers the model's files.
func TestModelManifest(t *testing.T) {
	folder := modelMap(t, "gpt2")
	s, err := openMap(folder)
	require.NoError(t, err)
	require.Equal(t, []string{"gpt2/manifest.json"}, s.Manifest.Files)
	results, err := ManifestCheck.Run(s)
	require.NoError(t, err)
	require.Equal(t, check.Pass, results[0].Verdict)
	require.Equal(t, 7, results[0].Compared)
	folder["gpt2/base/config.json"] = &fstest.MapFile{Data: append([]byte(" "), folder["gpt2/base/config.json"].Data...)}
	s, err = openMap(folder)
	require.NoError(t, err)
	results, err = ManifestCheck.Run(s)
	require.NoError(t, err)
	require.Equal(t, check.Fail, results[len(results)-1].Verdict)
	require.Equal(t, "gpt2/base/config.json", results[len(results)-1].Subject)
}

// textsMap returns the embedded texts and their tokenizer, in the layout of a folder.
func textsMap(t testing.TB) fstest.MapFS {
	t.Helper()
	folder := fstest.MapFS{}
	for name, as := range map[string]string{"strings.json": "tokenizer.json", "smollm2.json.gz": "smollm2.json.gz"} {
		content, err := data.Data.ReadFile("tokenizer/" + name)
		require.NoError(t, err)
		folder[as] = &fstest.MapFile{Data: content}
	}
	return folder
}

func TestHostileTexts(t *testing.T) {
	unpacked := func(t *testing.T, content []byte) []byte {
		z, err := gzip.NewReader(bytes.NewReader(content))
		require.NoError(t, err)
		text, err := io.ReadAll(z)
		require.NoError(t, err)
		return text
	}
	swap := func(old, new string) func(*testing.T, fstest.MapFS) {
		return func(t *testing.T, f fstest.MapFS) {
			before := string(f["tokenizer.json"].Data)
			require.Contains(t, before, old)
			f["tokenizer.json"] = &fstest.MapFile{Data: []byte(strings.Replace(before, old, new, 1))}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*testing.T, fstest.MapFS)
		want   check.Verdict
		text   string
	}{
		{"as it is", func(*testing.T, fstest.MapFS) {}, check.Pass, "numbers"},
		{"the tokenizer unpacked", func(t *testing.T, f fstest.MapFS) {
			f["tokenizer/tokenizer.json"] = &fstest.MapFile{Data: unpacked(t, f["smollm2.json.gz"].Data)}
			delete(f, "smollm2.json.gz")
		}, check.Pass, "numbers"},
		{"no tokenizer", func(_ *testing.T, f fstest.MapFS) { delete(f, "smollm2.json.gz") }, check.Undetermined, "no tokenizer.json of the set has the sha256"},
		{"another tokenizer", func(_ *testing.T, f fstest.MapFS) {
			f["tokenizer/tokenizer.json"] = &fstest.MapFile{Data: []byte("{}")}
		}, check.Undetermined, "x/tokenizer/tokenizer.json has the sha256"},
		{"not packed", func(_ *testing.T, f fstest.MapFS) {
			f["smollm2.json.gz"] = &fstest.MapFile{Data: []byte("x")}
		}, check.Undetermined, "smollm2.json.gz"},
		{"cut", func(_ *testing.T, f fstest.MapFS) {
			f["smollm2.json.gz"] = &fstest.MapFile{Data: f["smollm2.json.gz"].Data[:1000]}
		}, check.Undetermined, "smollm2.json.gz"},
		{"another id", swap("198", "199"), check.Fail, "beyond their bound"},
		{"no ids", swap(`"ids": [`, `"idz": [`), 0, "want a text and its ids"},
		{"an id that is none", swap("198", "-1"), check.Fail, "beyond their bound"},
		{"an id that is too large", swap("198", "99999999999"), 0, "want an id"},
		{"an id that is a fraction", swap("198", "1.5"), 0, "tokenizer.json"},
		{"a text that is none", swap(`"text": ""`, `"text": 3`), 0, "tokenizer.json"},
		{"another function", swap("add_special_tokens=False", "add_special_tokens=True"), check.Undetermined, "does not know this function"},
		{"a second file of texts", func(_ *testing.T, f fstest.MapFS) { f["more.json"] = f["tokenizer.json"] }, 0, "second file of texts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := textsMap(t)
			c.change(t, folder)
			s, err := openMap(folder)
			var results []check.Result
			if err == nil {
				results, err = Tokenizer.Run(s)
				err = errors.Join(err, s.Malformed())
			}
			if c.want == 0 {
				require.ErrorContains(t, err, c.text)
				require.True(t, format.IsMalformed(err), "%v", err)
				return
			}
			require.NoError(t, err)
			found := ""
			for _, r := range results {
				if r.Verdict == c.want {
					found += r.Reason
				}
			}
			require.Contains(t, found, c.text)
		})
	}
}

// The files of the embedded set are named as they lie in the repository.
func TestNamesOfEmbedded(t *testing.T) {
	s := embedded(t)
	for _, f := range s.Files {
		_, err := data.Data.ReadFile(f.Name)
		require.NoError(t, err, "named as it lies in the repository")
	}
	require.Len(t, s.Manifest.Files, 12)
	for _, m := range s.Manifest.Files {
		require.Equal(t, "manifest.json", path.Base(m))
	}
}
