[Models]
  [ra]
    type = ScalarVariableRate
    variable = 'a'
    variable_rate = 'a_rate'
  []
  [rb]
    type = ScalarVariableRate
    variable = 'b'
    variable_rate = 'b_rate'
  []
  [rc]
    type = ScalarVariableRate
    variable = 'c'
    variable_rate = 'c_rate'
  []
  [eq]
    type = ComposedModel
    models = 'ra rb rc'
  []
[]
