package observe_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// board contains the members of Grafana's dashboard schema (core kind dashboard, version 39) that our
// dashboard uses.
type board struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Version       int    `json:"version"`
	Editable      bool   `json:"editable"`
	GraphTooltip  int    `json:"graphTooltip"` // 0 to 2
	Refresh       string `json:"refresh"`
	Timezone      string `json:"timezone"`
	Description   string
	Tags          []string `json:"tags"`
	Time          struct{ From, To string }
	Annotations   struct {
		List []any `json:"list"`
	} `json:"annotations"`
	Links      []any `json:"links"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type variable struct {
	Name       string  `json:"name"`
	Label      string  `json:"label"`
	Type       string  `json:"type"`
	Datasource *source `json:"datasource"`
	Query      any     `json:"query"`
	Current    any     `json:"current"`
	Hide       int     `json:"hide"`    // 0 to 2
	Refresh    int     `json:"refresh"` // 0 to 2
	Options    []any   `json:"options"`
	Regex      string  `json:"regex"`
	Sort       int     `json:"sort"`
	IncludeAll bool    `json:"includeAll"`
	Multi      bool    `json:"multi"`
	AllValue   string  `json:"allValue"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Collapsed   bool   `json:"collapsed"`
	Panels      []any  `json:"panels"`
	GridPos     struct{ H, W, X, Y int }
	Datasource  *source `json:"datasource"`
	FieldConfig struct {
		Defaults struct {
			Unit   string   `json:"unit"`
			Min    *float64 `json:"min"`
			Custom any      `json:"custom"`
		} `json:"defaults"`
		Overrides []any `json:"overrides"`
	} `json:"fieldConfig"`
	Options map[string]any `json:"options"`
	Targets []struct {
		RefID        string  `json:"refId"`
		Expr         string  `json:"expr"`
		LegendFormat string  `json:"legendFormat"`
		Format       string  `json:"format"`
		Datasource   *source `json:"datasource"`
	} `json:"targets"`
}

func loadBoard(t *testing.T) *board {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(read(t, deploy("grafana", "pdmesh.json"))))
	d.DisallowUnknownFields()
	var b board
	require.NoError(t, d.Decode(&b))
	return &b
}

// The dashboard satisfies Grafana's schema: known types, units and positions, unique IDs, and a query in
// each panel.
func TestBoard(t *testing.T) {
	t.Parallel()
	b := loadBoard(t)
	if b.UID == "" || len(b.UID) > 40 || b.Title == "" || b.SchemaVersion < 36 || b.GraphTooltip > 2 || b.Time.From == "" || b.Time.To == "" {
		t.Errorf("dashboard: %+v", b)
	}
	types := map[string]bool{"row": true, "timeseries": true, "stat": true, "heatmap": true, "table": true}
	units := map[string]bool{"short": true, "s": true, "reqps": true, "percentunit": true, "bytes": true, "none": true}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		name := fmt.Sprintf("panel %d %q", p.ID, p.Title)
		assert.True(t, p.ID > 0 && !ids[p.ID] && p.Title != "" && types[p.Type], "%s: id, title or type %q", name, p.Type)
		ids[p.ID] = true
		g := p.GridPos
		assert.True(t, g.W > 0 && g.H > 0 && g.X >= 0 && g.X+g.W <= 24, "%s: position %+v", name, g)
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				require.Equal(t, "", taken[[2]int{x, y}], "%s overlaps", name)
				taken[[2]int{x, y}] = name
			}
		}
		if p.Type == "row" {
			continue
		}
		assert.True(t, units[p.FieldConfig.Defaults.Unit], "%s: unit %q", name, p.FieldConfig.Defaults.Unit)
		assert.NotEmpty(t, p.Targets, "%s has no query", name)
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.RefID == "" || refs[q.RefID] || q.Expr == "" || q.Datasource == nil || q.Datasource.UID != "${datasource}" {
				t.Errorf("%s: %+v", name, q)
			}
			refs[q.RefID] = true
		}
	}
	for _, v := range b.Templating.List {
		if v.Name == "" || v.Type != "datasource" && v.Type != "query" || v.Hide > 2 || v.Refresh > 2 {
			t.Errorf("variable %+v", v)
		}
	}
}
