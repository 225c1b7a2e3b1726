# The same rates under the slash names of NEML2 2.x. The old `old_state/a` is called `state/a~1` since 3.0:
#   torchferry export slash.i --model eq --rename 'state/*~1:old_state/*' --rename 'forces/*~1:old_forces/*'
[Models]
  [rate_a]
    type = ScalarVariableRate
    variable = 'state/a'
    time = 'forces/t'
  []
  [rate_b]
    type = ScalarVariableRate
    variable = 'state/b'
    time = 'forces/t'
  []
  [eq]
    type = ComposedModel
    models = 'rate_a rate_b'
  []
[]
