! fortran_layouts ELASTIC WHOLE: column-major arrays of every rank, sections, names, parameters, wrong calls.
program fortran_layouts
  use, intrinsic :: iso_fortran_env, only: int32, real32, real64
  use torchferry
  implicit none
  integer, parameter :: n = 7
  type(tf_model) :: model, whole, none
  character(500) :: path
  integer(int32) :: status, compared, failed
  integer :: i, j, e, failures = 0
  real(real64), target :: F(3, 3, n), v(3, n), s(n), force(3, 3, n), pushed(3, n), energy(n)
  real(real64), target :: padded(5, 4, 2*n), grid(3, 3, 2, 4), grid_v(3, 2, 4), grid_s(2, 4)
  real(real64), target :: grid_force(3, 3, 2, 4), grid_pushed(3, 2, 4), grid_energy(2, 4)
  real(real64), target :: one_F(3, 3), one_v(3), one_s, one_force(3, 3), one_pushed(3), one_energy
  real(real64), target :: A(2, 3), b(3), x(2), stiffness, empty_F(3, 3, 0), empty_v(3, 0), empty_s(0)
  real(real32), target :: wrong(n)
  type(tf_variable) :: variable

  call get_command_argument(1, path)
  call expect("load", TF_OK, loaded(model, path))
  call random_number(F)
  call random_number(v)
  call random_number(s)

  ! The batch is the last index; gradient(i, j, e) is component i, j of element e.
  call model%call([tf_view(F), tf_view(v), tf_view(s)], [tf_view(force), tf_view(pushed), tf_view(energy)], status)
  call expect("call", TF_OK, status)
  do e = 1, n
    call near("force", force(:, :, e), 2.5_real64*transpose(F(:, :, e)))
    call near("pushed", reshape(pushed(:, e), [3, 1]), reshape(matmul(F(:, :, e), v(:, e)) + [1, 2, 3], [3, 1]))
    call near("energy", reshape([energy(e)], [1, 1]), reshape([s(e)*sum(F(:, :, e)**2)], [1, 1]))
  end do

  ! Sections are read and written in place.
  padded = -1
  padded(2:4, 1:3, 1::2) = F
  force = 0
  call model%call([tf_view(padded(2:4, 1:3, 1::2)), tf_view(v), tf_view(s)], &
                  [tf_view(padded(2:4, 2:4, 2::2)), tf_view(pushed), tf_view(energy(n:1:1))], status)
  call expect("a section of no elements is too small", TF_ERROR_BUFFER, status)
  call model%call([tf_view(padded(2:4, 1:3, 1::2)), tf_view(v), tf_view(s)], &
                  [tf_view(padded(2:4, 2:4, 2::2)), tf_view(pushed), tf_view(energy)], status)
  call expect("sections", TF_OK, status)
  do e = 1, n
    call near("section", padded(2:4, 2:4, 2*e), 2.5_real64*transpose(F(:, :, e)))
  end do
  if (padded(1, 1, 2) /= -1 .or. padded(5, 4, 2) /= -1) call complain("a section's surroundings were written")

  ! Two batch dimensions, none, and no elements at all.
  grid = reshape(spread(F, 4, 2), shape(grid))
  grid_v = reshape(spread(v, 3, 2), shape(grid_v))
  grid_s = reshape(spread(s, 2, 2), shape(grid_s))
  call model%call([tf_view(grid), tf_view(grid_v), tf_view(grid_s)], &
                  [tf_view(grid_force), tf_view(grid_pushed), tf_view(grid_energy)], status)
  call expect("two batch dimensions", TF_OK, status)
  do j = 1, 4
    do i = 1, 2
      call near("grid", grid_force(:, :, i, j), 2.5_real64*transpose(grid(:, :, i, j)))
      call near("grid energy", reshape([grid_energy(i, j)], [1, 1]), &
                reshape([grid_s(i, j)*sum(grid(:, :, i, j)**2)], [1, 1]))
    end do
  end do
  one_F = F(:, :, 1)
  one_v = v(:, 1)
  one_s = s(1)
  call model%call([tf_view(one_F), tf_view(one_v), tf_view(one_s)], &
                  [tf_view(one_force), tf_view(one_pushed), tf_view(one_energy)], status)
  call expect("no batch", TF_OK, status)
  call near("one", one_force, 2.5_real64*transpose(one_F))
  call model%call([tf_view(empty_F), tf_view(empty_v), tf_view(empty_s)], &
                  [tf_view(empty_F), tf_view(empty_v), tf_view(empty_s)], status)
  call expect("no elements", TF_OK, status)

  ! By name, in another order, one output only.
  energy = 0
  call model%call_named([character(4) :: "s", "F", "v"], [tf_view(s), tf_view(F), tf_view(v)], &
                        [character(8) :: "energy"], [tf_view(energy)], status)
  call expect("by name", TF_OK, status)
  call near("named", reshape([energy(n)], [1, 1]), reshape([s(n)*sum(F(:, :, n)**2)], [1, 1]))
  call model%input(1, variable, status)
  if (variable%name /= "F" .or. any(variable%shape /= 3)) call complain("input 1 is not F")
  if (model%input_count() /= 3 .or. model%output_count() /= 3) call complain("counts")
  if (model%name() /= "Elastic") call complain("name: " // model%name())

  ! Parameters.
  stiffness = 4
  call model%set_parameter("stiffness", tf_view(stiffness), status)
  call expect("set", TF_OK, status)
  stiffness = 0
  call model%get_parameter("stiffness", tf_view(stiffness), status)
  if (stiffness /= 4) call complain("the parameter was not set")
  call model%call([tf_view(F), tf_view(v), tf_view(s)], [tf_view(force), tf_view(pushed), tf_view(energy)], status)
  call near("new stiffness", force(:, :, 2), 4*transpose(F(:, :, 2)))
  call model%run_cases(compared, failed, status)
  call expect("the cases know the old stiffness", TF_ERROR_MISMATCH, status)
  if (failed == 0 .or. failed == compared) call complain("one output of three depends on the stiffness")

  ! Wrong calls give a status and a text, and the model goes on.
  call model%call([tf_view(wrong), tf_view(v), tf_view(s)], [tf_view(force), tf_view(pushed), tf_view(energy)], status)
  call expect("dtype", TF_ERROR_DTYPE, status)
  if (index(model%last_error(), "'F'") == 0) call complain("the message does not name F: " // model%last_error())
  call model%call([tf_view(F), tf_view(v)], [tf_view(force), tf_view(pushed), tf_view(energy)], status)
  call expect("count", TF_ERROR_COUNT, status)
  call model%call([tf_view(v), tf_view(F), tf_view(s)], [tf_view(force), tf_view(pushed), tf_view(energy)], status)
  call expect("shape", TF_ERROR_SHAPE, status)
  call model%call_named([character(4) :: "s", "F", "w"], [tf_view(s), tf_view(F), tf_view(v)], &
                        [character(8) :: "energy"], [tf_view(energy)], status)
  call expect("name", TF_ERROR_NAME, status)
  call none%call([tf_view(s)], [tf_view(s)], status)
  call expect("no model", TF_ERROR_HANDLE, status)
  call none%load("nowhere.pt", status)
  call expect("no file", TF_ERROR_FILE, status)
  if (len(none%last_error()) == 0) call complain("no message for a missing file")
  call model%call([tf_view(F), tf_view(v), tf_view(s)], [tf_view(force), tf_view(pushed), tf_view(energy)], status)
  call expect("still usable", TF_OK, status)
  call model%close(status)
  call expect("close", TF_OK, status)
  call model%close(status)
  call expect("close twice", TF_ERROR_HANDLE, status)

  ! Fixed shapes: A(i, j) is component i, j.
  call get_command_argument(2, path)
  call expect("load", TF_OK, loaded(whole, path))
  call random_number(A)
  call random_number(b)
  call whole%call([tf_view(A), tf_view(b)], [tf_view(x)], status)
  call expect("whole", TF_OK, status)
  call near("product", reshape(x, [2, 1]), reshape(matmul(A, b), [2, 1]))
  call whole%close(status)

  if (failures > 0) error stop 1
  print "(a)", "fortran_layouts: all passed"

contains

  integer(int32) function loaded(it, from) result(answer)
    type(tf_model), intent(inout) :: it
    character(*), intent(in) :: from
    call it%load(trim(from), answer, settable_parameters=.true.)
  end function

  subroutine expect(what, wanted, got)
    character(*), intent(in) :: what
    integer(int32), intent(in) :: wanted, got
    if (got == wanted) return
    call complain(what // ": " // tf_status_name(got) // " instead of " // tf_status_name(wanted) // ": " // &
                  model%last_error())
  end subroutine

  subroutine near(what, got, wanted)
    character(*), intent(in) :: what
    real(real64), intent(in) :: got(:, :), wanted(:, :)
    ! not <=: a NaN is far from everything
    if (.not. all(abs(got - wanted) <= 1e-14_real64)) call complain(what // " differs")
  end subroutine

  subroutine complain(what)
    character(*), intent(in) :: what
    print "(a)", what
    failures = failures + 1
  end subroutine

end program
