# A backward Euler step of x_rate = -x: with x~1 = 1 and a step of 1 the solution of neml2's own Newton solver is 0.5.
[Models]
  [rate]
    type = ScalarLinearCombination
    from = 'x'
    weights = '-1'
    to = 'x_rate'
  []
  [step]
    type = ScalarBackwardEulerTimeIntegration
    variable = 'x'
  []
  [residual]
    type = ComposedModel
    models = 'rate step'
  []
  [model]
    type = ImplicitUpdate
    equation_system = 'system'
    solver = 'newton'
  []
[]
[EquationSystems]
  [system]
    type = NonlinearSystem
    model = 'residual'
    unknowns = 'x'
  []
[]
[Solvers]
  [newton]
    type = Newton
    linear_solver = 'lu'
  []
  [lu]
    type = DenseLU
  []
[]
