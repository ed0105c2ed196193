// Package golden holds what other programs computed: data, and for each folder a manifest that names its producer, the
// versions, the seed and the sha256 of every file. The producers are in golden/gen; no code of this module writes here.
package golden

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
)

// Data is the golden files that are part of the program, by folder. The others are beside it in the repository.
//
//go:embed all:projection all:rl all:demo all:quant all:lora all:museum
//go:embed all:models/arcagent all:models/gpt2 all:models/gptj all:models/judge all:models/llama all:models/maskedgpt all:models/qwen2 all:models/qwen2b
//go:embed tokenizer/manifest.json tokenizer/strings.json tokenizer/smollm2.json.gz
var Data embed.FS

// Manifest describes one folder.
type Manifest struct {
	Producer string            `json:"producer"`
	Versions map[string]string `json:"versions"`
	Seed     uint64            `json:"seed"`
	Values   json.RawMessage   `json:"values"` // numbers computed by the producer, if it has any beside the files
	SHA256   map[string]string `json:"sha256"`
}

// Load reads the manifest of a folder of fsys and checks that the folder's files are those it lists, no more, no fewer and
// unchanged.
func Load(fsys fs.FS, folder string) (*Manifest, error) {
	text, err := fs.ReadFile(fsys, path.Join(folder, "manifest.json"))
	if err != nil {
		return nil, err
	}
	m := new(Manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("golden/%s/manifest.json: %w", folder, err)
	}
	seen := 0
	err = fs.WalkDir(fsys, folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Base(name) == "manifest.json" {
			return err
		}
		rel := name[len(folder)+1:]
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		if got := hex.EncodeToString(sum[:]); got != m.SHA256[rel] {
			return fmt.Errorf("golden/%s has sha256 %s, its manifest says %q: goldens are written by their producer only", name, got, m.SHA256[rel])
		}
		seen++
		return nil
	})
	if err == nil && seen != len(m.SHA256) {
		err = fmt.Errorf("golden/%s has %d files, its manifest lists %d", folder, seen, len(m.SHA256))
	}
	return m, err
}
