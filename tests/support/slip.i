# Rates g of slip under a force b that they relieve: g = law(b - A g), with a coordinate descent for the first guess.
[Models]
  [law]
    type = PowerLawSlipRule
    resolved_shears = 'force'
    slip_strengths = 'strength'
    slip_rates = 'rate'
    gamma0 = 0.1
    n = 4.1
  []
  [relieved]
    type = ScalarMultiplication
    from = 'A g'
    to = 'relieved'
  []
  [force]
    type = ScalarLinearCombination
    from = 'b relieved'
    weights = '1 -1'
    to = 'force'
  []
  [balance]
    type = ScalarLinearCombination
    from = 'g rate'
    weights = '1 -1'
    to = 'g_residual'
  []
  [residual]
    type = ComposedModel
    models = 'relieved force law balance'
  []
  [guess]
    type = CoordinateDescentPredictor
    rate_law = 'law'
    driving_force_input = 'force'
    coupling = 'A'
    trial_driving_force = 'b'
    rate = 'g'
    sweeps = 2
  []
  [slip]
    type = ImplicitUpdate
    equation_system = 'system'
    solver = 'newton'
    predictor = 'guess'
  []
[]
[EquationSystems]
  [system]
    type = NonlinearSystem
    model = 'residual'
    unknowns = 'g'
    residuals = 'g_residual'
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
