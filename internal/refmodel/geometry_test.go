package refmodel

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
	"plumbline/internal/format/hf"
	"plumbline/internal/pretrained"
	"plumbline/reference/model"
)

// The reference has a configuration of its own. For every model of the repository it lists the tensors and linear layers that
// plumbline/internal/arch lists, in the same order, and arch lists what the files hold.
func TestGeometry(t *testing.T) {
	seen := map[string]int{}
	for _, root := range []string{"../../golden", "../assets", "../format"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "config.json" {
				return err
			}
			dir := filepath.Dir(path)
			h, err := hf.ReadConfig(dir)
			if err != nil || !slices.Contains(pretrained.Languages, h.Type) {
				return nil // of a masked model, an agent, or an architecture that the reference does not run
			}
			c, err := Config(h.File, h.Config)
			require.NoError(t, err, path)
			same(t, h.Config, c)
			seen[h.Type]++
			s, err := pretrained.Open(dir, pretrained.Options{NoTokenizer: true})
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil { // weights that lie elsewhere or are no language model's are refused, which others test
				defer s.Close()
				for _, w := range s.Config.Tensors() {
					stored, err := s.Weight(w.Name)
					require.NoError(t, err)
					require.Equal(t, w.Shape, stored.Shape)
				}
				seen["opened"]++
			}
			return nil
		}))
	}
	for _, name := range pretrained.Languages {
		require.Greater(t, seen[name], 3, name)
	}
	require.Greater(t, seen["opened"], 20)
}

// same compares a geometry with the reference's.
func same(t require.TestingT, c arch.Config, r model.Config) {
	for _, tied := range []bool{c.Tied, !c.Tied} {
		c.Tied, r.Tied = tied, tied
		var tensors []model.Tensor
		for _, w := range c.Tensors() {
			tensors = append(tensors, model.Tensor{Name: w.Name, Shape: w.Shape})
		}
		require.Equal(t, r.Tensors(), tensors)
		var linears []model.Tensor
		for _, m := range c.Linears() {
			linears = append(linears, model.Tensor{Name: m.Name, Shape: []int{m.Out, m.In}})
		}
		require.Equal(t, r.Linears(), linears)
	}
}

// A geometry that is wrong in one name, one shape or one order is seen.
func TestGeometryFails(t *testing.T) {
	h, err := hf.ReadConfig("../../golden/models/qwen2/base")
	require.NoError(t, err)
	r, err := Config(h.File, h.Config)
	require.NoError(t, err)
	for _, spoil := range []func(*arch.Config){
		func(c *arch.Config) { c.Inner++ }, func(c *arch.Config) { c.QKVBias = false }, func(c *arch.Config) { c.KVHeads = c.Heads },
		func(c *arch.Config) { c.HeadBias = true }, func(c *arch.Config) { c.Type = "gptj" }, func(c *arch.Config) { c.Layers++ },
	} {
		c := h.Config
		spoil(&c)
		f := new(failed)
		func() {
			defer func() { _ = recover() }()
			same(f, c, r)
		}()
		require.True(t, f.Failed)
	}
}

// failed is a test that notes that it failed.
type failed struct{ Failed bool }

func (f *failed) Errorf(string, ...any) { f.Failed = true }
func (f *failed) FailNow()              { panic("failed") }
