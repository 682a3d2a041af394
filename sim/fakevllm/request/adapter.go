package request

import "github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"

// LoadAdapter is the body of /v1/load_lora_adapter; /v1/unload_lora_adapter has the name only
// (vllm/entrypoints/serve/lora/protocol.py).
type LoadAdapter struct {
	Name, Path string
	InPlace    bool
}

// ParseAdapter reads a body of one of the two routes.
func ParseAdapter(body []byte, load bool) (LoadAdapter, error) {
	var r LoadAdapter
	var c collected
	var named, located bool
	err := pydantic.ForEachMember(body, func(key string, raw []byte) (err error) {
		switch {
		case key == "lora_name":
			named = true
			r.Name, err = pydantic.String(key, raw)
		case key == "lora_path" && load:
			located = true
			r.Path, err = pydantic.String(key, raw)
		case key == "load_inplace" && load:
			r.InPlace, err = pydantic.Bool(key, raw)
		case key == "is_3d_lora_weight" && load:
			_, err = pydantic.Bool(key, raw)
		case key == "lora_int_id" && !load && !pydantic.IsNull(raw):
			_, err = pydantic.Int(key, raw)
		default:
			err = pydantic.Validate(raw)
		}
		return c.add(err)
	})
	if err != nil {
		return LoadAdapter{}, judge(body, err)
	}
	missing := func(loc string) {
		c.problems = append(c.problems, pydantic.Problem{Kind: "missing", Loc: "body." + loc, Msg: "Field required", Input: pydantic.Describe(body)})
	}
	if !named {
		missing("lora_name")
	}
	if load && !located {
		missing("lora_path")
	}
	if len(c.problems) > 0 {
		return LoadAdapter{}, pydantic.Complaints(c.problems...)
	}
	return r, nil
}
